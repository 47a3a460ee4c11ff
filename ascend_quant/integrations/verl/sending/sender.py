"""The trainer's side of a weight sync: verl's actor worker, which sends rounded weights, followed by their checksums.

The weights are wrapped where the training engine hands them out, before any transport, so the same checksums cover
colocated engines (shared memory or IPC) and disaggregated ones (through a checkpoint engine).
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext
from typing import Any

from verl.single_controller.base.decorator import Dispatch, register
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ascend_quant.integrations.verl.sending import hooks, sync_memory
from ascend_quant.integrations.verl.sending.delta_sync import telling
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.sync_metrics import Metrics
from ascend_quant.integrations.verl.sending.weight_sender import WeightSender, own_device
from ascend_quant.integrations.verl.settings import NAIVE
from ascend_quant.integrations.verl.training.hooks import WITH_EXACT_TEMPERATURE
from ascend_quant.integrations.wrapping import install
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import Unquantized
from ascend_quant.transfer.digests import prepare
from ascend_quant.transfer.validate import NamedTensor


class SendingTrainingWorker(TrainingWorker):
    """verl's worker of the trained model, which sends weights through a `WeightSender`.

    Attributes:
        seconds: time to build the model.
        unquantized: layers that fake quantization ignores, see training/qat_worker.py.
    """

    unquantized: Unquantized | None = None

    def __init__(self, *args: Any, options: SendOptions, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        install(WITH_EXACT_TEMPERATURE)  # the engine's module has been imported by now
        self.sender = WeightSender(self.engine, options)
        get_weights = self.engine.get_per_tensor_param
        if options.form is not None:
            install(hooks.WITH_KV_SCALES)
            get_weights = self.sender.calibrated(get_weights)
        self.engine.get_per_tensor_param = with_weights(get_weights, self.as_sent)
        self.engine.to = self.sender.offloaded.before(self.engine.to)

    def as_sent(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """Return the engine's weights in their wire format, see `WeightSender`."""
        install(hooks.WHEN_WEIGHTS_LEAVE)  # the rollout's module has been imported by now
        return self.sender.as_sent(weights, self.unquantized)

    @functools.wraps(TrainingWorker.infer_batch)
    def infer_batch(self, data: Any) -> Any:
        with self.sender.observing():
            return super().infer_batch(data)

    @functools.wraps(TrainingWorker.train_mini_batch)
    def train_mini_batch(self, data: Any) -> Any:
        with self.sender.offloaded.updating(), self.sender.observing_update():
            return super().train_mini_batch(data)

    def reset(self) -> None:
        """Build the model, and compile the digest kernels, so that the first sync does not wait for them."""
        super().reset()
        if self.sender.options.proves:
            prepare(own_device())


class SendsWeights:
    """Mixin before verl's actor worker class, whose training worker is a `SendingTrainingWorker`."""

    @functools.wraps(ActorRolloutRefWorker.init_model)
    def init_model(self) -> None:
        super().init_model()
        if self.actor is None:  # a worker that has only a reference model
            return
        if self.actor.sender.delta is not None and hasattr(self, "checkpoint_engine"):
            telling(self.checkpoint_engine, self.actor.sender.delta.against)

    @functools.wraps(ActorRolloutRefWorker.update_weights)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        rollout = self.config.rollout
        is_apart = (rollout.checkpoint_engine.backend if mode == "auto" else mode) != NAIVE
        if is_apart or not rollout.free_cache_engine:
            return await super().update_weights(global_steps, mode)
        install(hooks.WITH_CACHE_KEPT)
        sender = self.actor.sender
        found = await asyncio.to_thread(sync_memory.find_room, sender.options.share, sender.options.bucket)
        sender.metrics.kept = found.kept if found else 0
        with sync_memory.keep_allocator_cache() if found else nullcontext():
            async with sync_memory.overlap_wake_up(self.rollout, found):
                return await super().update_weights(global_steps, mode)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def send_codes(self, scheme: Scheme, names: Collection[str]) -> None:
        """Send these parameters pre-quantized in this scheme from now on."""
        self.actor.sender.send_codes(scheme, frozenset(names))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sync_metrics(self) -> Metrics:
        """Return bytes and milliseconds of the last weight sync in this process, as metrics."""
        return self.actor.sender.metrics.as_metrics()


def sends_weights(worker_class: type, options: SendOptions) -> type:
    """Subclass verl's actor worker class so that its training worker is a `SendingTrainingWorker`."""

    class SendingActorWorker(SendsWeights, worker_class):
        actor_worker_cls = staticmethod(functools.partial(SendingTrainingWorker, options=options))

    return SendingActorWorker


def with_weights(get_weights: Callable, as_sent: Callable[[Iterable[NamedTensor]], Iterable[NamedTensor]]) -> Callable:
    """Wrap verl's `get_per_tensor_param`: it returns the weights processed by `as_sent`, and the LoRA settings.

    A LoRA adapter is sent unchanged, by verl's code on both sides; with `lora.merge` verl merges it before this.
    """

    @functools.wraps(get_weights)
    def get_weights_as_sent(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        weights, peft_config = get_weights(*args, **kwargs)
        if peft_config and kwargs.get("base_sync_done"):
            return weights, peft_config
        return as_sent(weights), peft_config

    return get_weights_as_sent
