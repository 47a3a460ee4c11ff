"""An actor that computes the engine's INT8 policy and counts tokens with another log-probability than the engine's.

They are compared in the forward passes of an update, while the actor's weights are those that the rollout has sampled
with: from a sync to the first optimizer step after it. Later mini-batches are another policy. What the trainer's
process makes of the counts is in trainer.py.
"""

import functools
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tensordict import TensorDict
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils import tensordict_utils
from verl.utils.device import get_device_name
from verl.utils.metric import Metric
from verl.workers.utils.padding import no_padding_2_padding

from ascend_quant.exact import apply_exact
from ascend_quant.exact.apply import Applied
from ascend_quant.exact.counters import Compared, compare
from ascend_quant.exact.fingerprint import fingerprint
from ascend_quant.exact.stages import Recorded, Recorder
from ascend_quant.integrations.vllm.layers import register_products
from ascend_quant.refit import RefitError

AGGREGATED = {  # over micro-batches and ranks
    "exact/tokens": "sum",
    "exact/unequal": "sum",
    "exact/max_diff": "max",
    "exact/k3_kl": "mean",
}
LOOP = "VERL_DISABLE_FLASH_ATTN_CE"  # verl then takes log-probabilities row by row, whatever function we give it


class Unequal(NamedTuple):
    """A token whose log-probability is not the engine's, and the sequence that it stands in.

    Attributes:
        tokens: prompt and answer.
        prompt: tokens of the prompt.
        position: of the token in its answer.
        engine, trainer: the log-probabilities.
        rank: of the actor.
    """

    tokens: list[int]
    prompt: int
    position: int
    engine: float
    trainer: float
    rank: int

    def __str__(self) -> str:
        return (
            f"token {self.position} of an answer of {len(self.tokens) - self.prompt} to a prompt of {self.prompt}, on "
            f"rank {self.rank} of the actor: {self.engine:.9g} in the engine, {self.trainer:.9g} in the trainer"
        )


def apply(engine: Any, ranks: int) -> Applied:
    """Give what a training engine of verl's holds the forward of a rollout engine of `ranks` tensor parallel ranks.

    Raises:
        RefitError: a variable has verl take log-probabilities otherwise.
        NotExact: see `apply_exact`.
    """
    from ascend_quant.integrations.verl.training import hooks
    from ascend_quant.integrations.verl.training.packed_attention import register_exact

    if os.environ.get(LOOP, "0") == "1":
        raise RefitError(
            f"{LOOP}=1: verl's loop computes log-probabilities that differ from the engine's; unset it for int8_exact"
        )
    register_products(get_device_name())
    hooks.take_log_probs_as_the_engine(words=len(engine.model_config.tokenizer))  # verl's engine samples no others
    applied = apply_exact(engine.module, ranks)
    register_exact()
    return applied


class Counter:
    """Counts the tokens whose log-probabilities differ from the engine's, in a training engine's micro-batches.

    Args:
        engine: verl's; three of its methods are replaced, see training/hooks.py.

    Attributes:
        first: the first token since the last sync that differs on this rank.
    """

    def __init__(self, engine: Any):
        self.engine, self.synced = engine, False
        self.first: Unequal | None = None
        engine.forward_step = self._counted(engine.forward_step)
        engine.optimizer_step = self._before(engine.optimizer_step, self._stepped)
        engine.get_per_tensor_param = self._before(engine.get_per_tensor_param, self._synced)

    def _stepped(self) -> None:
        self.synced = False

    def _synced(self) -> None:
        self.synced, self.first = True, None

    def _before(self, method: Callable[..., Any], note: Callable[[], None]) -> Callable[..., Any]:
        @functools.wraps(method)
        def note_and_call(*args: Any, **kwargs: Any) -> Any:
            note()
            return method(*args, **kwargs)

        return note_and_call

    def _counted(self, forward_step: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(forward_step)
        def step(micro_batch: Any, loss_function: Any, forward_only: bool) -> Any:
            loss, output = forward_step(micro_batch, loss_function=loss_function, forward_only=forward_only)
            if self.synced and not forward_only:
                found = self._compare(output["model_output"]["log_probs"], micro_batch)
                output["metrics"].update(self._metrics(found))
            return loss, output

        return step

    def _compare(self, log_probs: torch.Tensor, micro_batch: Any) -> Compared:
        engine, mask = (micro_batch[name].to_padded_tensor(0) for name in ("rollout_log_probs", "response_mask"))
        trainer = no_padding_2_padding(log_probs, micro_batch).to(engine.device)
        found = compare(engine, trainer, mask)
        if found.first is not None and self.first is None:
            row, position = found.first
            prompt, answer = (micro_batch[name].unbind()[row].tolist() for name in ("prompts", "responses"))
            values = engine[found.first].item(), trainer[found.first].item()
            rank = torch.distributed.get_rank()
            self.first = Unequal([*prompt, *answer], len(prompt), position, *values, rank)
        return found

    def _metrics(self, found: Compared) -> dict[str, Metric]:
        """Return the counts as metrics, sums scaled up because verl averages them over its data-parallel ranks."""
        ranks = self.engine.get_data_parallel_size()
        return {
            name: Metric(AGGREGATED[name], value * ranks if AGGREGATED[name] == "sum" else value)
            for name, value in found.as_metrics().items()
        }


class ExactRolloutWorker:
    """Mixin before verl's worker of an exact actor: answers what the trainer asks of it."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_fingerprint(self) -> dict[str, str]:
        """Return this process's fingerprint, see fingerprint.py."""
        return fingerprint()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_first_unequal(self) -> Unequal | None:
        """Return the first token since the last sync that differs, see `Counter.first`."""
        return self.actor.counter.first

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_log_probs(self, rows: list[list[int]]) -> list[list[float]] | None:
        """Compute the actor's log-probabilities of each row's tokens but the first, at temperature 1, on every rank.

        Returns:
            None on a rank that shares its sequences with others and is not their first.
        """
        tokens = [torch.tensor(row) for row in rows]
        fields = {
            "input_ids": tokens,
            "position_ids": [torch.arange(len(row)) for row in tokens],
            "loss_mask": [torch.ones_like(row) for row in tokens],
        }
        nested = {name: torch.nested.as_nested_tensor(each, layout=torch.jagged) for name, each in fields.items()}
        data = TensorDict(nested, batch_size=len(rows))
        longest = max(map(len, rows))
        tensordict_utils.assign_non_tensor(
            data,
            temperature=1.0,
            calculate_entropy=False,
            compute_loss=False,
            use_dynamic_bsz=True,  # short rows share a micro-batch, as in training
            max_token_len_per_gpu=longest,
            global_token_num=[len(row) for row in rows],
        )
        output = self.actor.infer_batch(data)
        # at a row's last token there is no next one
        return None if output is None else [row[:-1].tolist() for row in output["log_probs"].unbind()]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_stages(self, tokens: list[int]) -> dict[str, Recorded]:
        """Return the stages of the actor's forward pass of one sequence, those of this rank's part of it."""
        recorder = Recorder(self.actor.engine.module)
        self.exact_log_probs([tokens])
        return recorder.close()


def renamed(metrics: dict[str, Any]) -> None:
    """Give the counts their own names: verl puts `actor/` before all that an update tells. In place."""
    for name in AGGREGATED:
        if (value := metrics.pop(f"actor/{name}", None)) is not None:
            metrics[name] = value
