"""The trainer's side of the proof: verl's actor worker, whose weights are followed by their digests.

The weights are wrapped where the training engine hands them out, before any transport: what colocated engines get
through shared memory or IPC, and what distant ones get through a checkpoint engine first, is proved alike.
"""

import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers import TrainingWorker

from ascend_quant.proof import prepare, sending


class ProvingTrainingWorker(TrainingWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.began, self.seconds = time.perf_counter(), 0.0  # until the model is there
        super().__init__(*args, **kwargs)
        self.engine.get_per_tensor_param = with_digests(self.engine.get_per_tensor_param)

    def reset(self) -> None:
        """Make the model; then what its digests need, so that the first sync waits for no compiler."""
        super().reset()
        found = getattr(self.engine, "module", [])  # one, or one for each of Megatron's virtual stages
        modules = found if isinstance(found, (list, tuple)) else [found]
        device = torch.empty(0, device=get_device_name()).device  # with its number
        prepare(device, [parameter for module in modules for parameter in module.parameters()])
        self.seconds = time.perf_counter() - self.began


class SendsDigests:
    """Mixed in before verl's actor worker class."""

    actor_worker_cls = ProvingTrainingWorker

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seconds_of_actor(self) -> float:
        """What it took to make the model that is trained, without the reference."""
        return self.actor.seconds


def sends_digests(worker_class: type) -> type:
    return type(f"Proving{worker_class.__name__}", (SendsDigests, worker_class), {})


def with_digests(get_weights: Callable) -> Callable:
    """verl's `get_per_tensor_param`, returning weights and the LoRA settings, with the digests behind the weights.

    Adapters alone go without: they are verl's own business on both sides.
    """

    @functools.wraps(get_weights)
    def get_proved_weights(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        weights, peft_config = get_weights(*args, **kwargs)
        if peft_config and kwargs.get("base_sync_done"):
            return weights, peft_config
        return sending(weights), peft_config

    return get_proved_weights
