"""The trainer's side of a weight sync: verl's actor worker, whose weights leave rounded, followed by their digests.

The weights are wrapped where the training engine hands them out, before any transport: what colocated engines get
through shared memory or IPC, and what distant ones get through a checkpoint engine first, is proved alike.
"""

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers import TrainingWorker

from ascend_quant.integrations.verl import hooks
from ascend_quant.integrations.verl.rounding import ENGINE_DTYPE, kept_by, rounded
from ascend_quant.integrations.wrapping import install
from ascend_quant.names import Unquantized
from ascend_quant.refit.proof import prepare, sending
from ascend_quant.refit.sent import NamedTensor


class SendingTrainingWorker(TrainingWorker):
    """verl's worker with the model that is trained.

    Attributes:
        proves: whether digests follow the weights.
        rounds: whether what a BF16 engine rounds leaves in BF16, see rounding.py.
        unquantized: by fake quantization, see qat_worker.py.
    """

    proves, rounds = True, False
    unquantized: Unquantized | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.began, self.seconds = time.perf_counter(), 0.0  # until the model is there
        super().__init__(*args, **kwargs)
        self.engine.get_per_tensor_param = with_weights(self.engine.get_per_tensor_param, self.as_sent)

    def as_sent(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """The engine's weights as they leave; digests are of what leaves."""
        install(hooks.WHEN_WEIGHTS_LEAVE)  # the rollout's module is there by now
        if self.rounds:
            weights = rounded(weights, kept_by(self.engine.module))
        return sending(weights, self.unquantized) if self.proves else weights

    def reset(self) -> None:
        """Make the model; then what its digests need, so that the first sync waits for no compiler."""
        super().reset()
        if self.proves:
            prepare(torch.empty(0, device=get_device_name()).device)  # with its number
        self.seconds = time.perf_counter() - self.began


class SendsWeights:
    """Mixed in before verl's actor worker class."""

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seconds_of_actor(self) -> float:
        """What it took to make the model that is trained, without the reference."""
        return self.actor.seconds


def sends_weights(worker_class: type, engine_dtype: str | None = None, proves: bool = True) -> type:
    """verl's actor worker class, whose training worker is a `SendingTrainingWorker`.

    Args:
        engine_dtype: verl's `rollout.dtype`.
        proves: whether digests follow the weights.
    """
    chosen = {"proves": proves, "rounds": engine_dtype == ENGINE_DTYPE}
    actor = type(SendingTrainingWorker.__name__, (SendingTrainingWorker,), chosen)
    return type(f"Sending{worker_class.__name__}", (SendsWeights, worker_class), {"actor_worker_cls": actor})


def with_weights(get_weights: Callable, as_sent: Callable[[Iterable[NamedTensor]], Iterable[NamedTensor]]) -> Callable:
    """verl's `get_per_tensor_param`, returning what `as_sent` makes of the weights, and the LoRA settings.

    Adapters alone go as they are: they are verl's own business on both sides.
    """

    @functools.wraps(get_weights)
    def get_weights_as_sent(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        weights, peft_config = get_weights(*args, **kwargs)
        if peft_config and kwargs.get("base_sync_done"):
            return weights, peft_config
        return as_sent(weights), peft_config

    return get_weights_as_sent
