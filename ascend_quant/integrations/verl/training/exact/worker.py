"""An actor that computes the engine's INT8 policy and counts tokens whose log-probability differs from the engine's.

They are compared in the forward passes of an update, while the actor has the weights of the rollout: from a sync to the
first optimizer step after it. Later mini-batches have another policy. The trainer's process evaluates the counts
(trainer.py).
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
LOOP = "VERL_DISABLE_FLASH_ATTN_CE"  # makes verl compute log-probabilities row by row, bypassing our function


class Unequal(NamedTuple):
    """A token whose log-probability differs from the engine's, with its sequence.

    Attributes:
        tokens: tokens of prompt and answer.
        prompt: number of prompt tokens.
        position: index of the token in its answer.
        engine, trainer: the two log-probabilities.
        rank: rank of the actor.
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
    """Replace the forward of verl's training engine by that of a rollout engine with `ranks` ranks.

    Raises:
        RefitError: an environment variable makes verl compute log-probabilities in another way.
        NotExact: see `apply_exact`.
    """
    from ascend_quant.integrations.verl.training import hooks
    from ascend_quant.integrations.verl.training.packed_attention import register_exact

    if os.environ.get(LOOP, "0") == "1":
        raise RefitError(
            f"{LOOP}=1: verl's loop computes log-probabilities that differ from the engine's; unset it for int8_exact"
        )
    register_products(get_device_name())
    hooks.take_log_probs_as_the_engine(words=len(engine.model_config.tokenizer))  # verl's engine does not sample others
    applied = apply_exact(engine.module, ranks)
    register_exact()
    return applied


class Counter:
    """Counts the tokens whose log-probabilities differ from the engine's, over a training engine's micro-batches.

    Args:
        engine: verl's training engine; three of its methods are replaced, see training/hooks.py.

    Attributes:
        first: the first differing token since the last sync, on this rank.
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
    """Mixin before verl's worker of an exact actor, with the methods that the trainer calls."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_fingerprint(self) -> dict[str, str]:
        """Return this process's fingerprint, see fingerprint.py."""
        return fingerprint()

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_first_unequal(self) -> Unequal | None:
        """Return the first differing token since the last sync, see `Counter.first`."""
        return self.actor.counter.first

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_log_probs(self, rows: list[list[int]]) -> list[list[float]] | None:
        """Compute the actor's log-probabilities of each row's tokens but the first, at temperature 1, on every rank.

        Returns:
            None on ranks that share their sequences with a lower rank.
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
            use_dynamic_bsz=True,  # batches short rows together, as in training
            max_token_len_per_gpu=longest,
            global_token_num=[len(row) for row in rows],
        )
        output = self.actor.infer_batch(data)
        # a row's last token has no successor
        return None if output is None else [row[:-1].tolist() for row in output["log_probs"].unbind()]

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def exact_stages(self, tokens: list[int]) -> dict[str, Recorded]:
        """Return the stages of the actor's forward pass of one sequence, for this rank's part of it."""
        recorder = Recorder(self.actor.engine.module)
        self.exact_log_probs([tokens])
        return recorder.close()


def renamed(metrics: dict[str, Any]) -> None:
    """Rename the counts in place, since verl prefixes all metrics of an update with `actor/`."""
    for name in AGGREGATED:
        if (value := metrics.pop(f"actor/{name}", None)) is not None:
            metrics[name] = value
