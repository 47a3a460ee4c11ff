"""An actor that computes the engine's INT8 policy, and how many tokens' log-probabilities are not the engine's bits.

They are compared in the forward passes of an update, while the actor's weights are those that the rollout has sampled
with: from a sync to the first optimizer step after it. Later mini-batches are another policy.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from verl.utils.device import get_device_name
from verl.utils.metric import Metric
from verl.workers.utils.padding import no_padding_2_padding

from ascend_quant.exact import apply_exact
from ascend_quant.exact.apply import Applied
from ascend_quant.exact.counters import Compared, compare
from ascend_quant.integrations.vllm.layers import register_products

logger = logging.getLogger(__name__)

AGGREGATED = {  # over micro-batches and ranks
    "exact/tokens": "sum",
    "exact/unequal": "sum",
    "exact/max_diff": "max",
    "exact/k3_kl": "mean",
}


def apply(module: torch.nn.Module, ranks: int) -> Applied:
    """The engine's forward for what a training engine of verl's holds."""
    from ascend_quant.integrations.verl import hooks
    from ascend_quant.integrations.verl.packed_attention import register_exact

    register_products(get_device_name())
    hooks.take_log_probs_as_the_engine()
    applied = apply_exact(module, ranks)
    register_exact()
    return applied


class Counter:
    """Counts in a training engine's micro-batches.

    Args:
        engine: verl's; three of its methods are replaced, see hooks.py.
    """

    def __init__(self, engine: Any):
        self.engine, self.synced, self.warned = engine, False, False
        engine.forward_step = self._counted(engine.forward_step)
        engine.optimizer_step = self._before(engine.optimizer_step, synced=False)
        engine.get_per_tensor_param = self._before(engine.get_per_tensor_param, synced=True)

    def _before(self, method: Callable[..., Any], synced: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def note_and_call(*args: Any, **kwargs: Any) -> Any:
            self.synced = synced
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
        engines, mask = (micro_batch[name].to_padded_tensor(0) for name in ("rollout_log_probs", "response_mask"))
        found = compare(engines, no_padding_2_padding(log_probs, micro_batch).to(engines.device), mask)
        if found.first is not None and not self.warned:
            self.warned = True
            row, position = found.first
            prompt = int(micro_batch["prompts"].offsets().diff()[row])
            logger.warning(
                "exact: %d of %d tokens of a micro-batch do not have the engine's log-probability, the first one token "
                "%d of row %d (prompt of %d tokens), on rank %d; the largest difference is %.3g. The actor and the "
                "engine compute different policies; later ones are counted in exact/unequal",
                found.unequal,
                found.tokens,
                position,
                row,
                prompt,
                torch.distributed.get_rank(),
                found.max_diff,
            )
        return found

    def _metrics(self, found: Compared) -> dict[str, Metric]:
        """verl means a sum over its data-parallel ranks."""
        ranks = self.engine.get_data_parallel_size()
        return {
            name: Metric(AGGREGATED[name], value * ranks if AGGREGATED[name] == "sum" else value)
            for name, value in found.as_metrics().items()
        }


def renamed(metrics: dict[str, Any]) -> None:
    """Give the counts their own names: verl puts `actor/` before all that an update tells. In place."""
    for name in AGGREGATED:
        if (value := metrics.pop(f"actor/{name}", None)) is not None:
            metrics[name] = value
