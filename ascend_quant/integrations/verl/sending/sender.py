"""The trainer's side of a weight sync: verl's actor worker, whose weights leave rounded, followed by their digests.

The weights are wrapped where the training engine hands them out, before any transport: what colocated engines get
through shared memory or IPC, and what distant ones get through a checkpoint engine first, is proved alike.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import chain
from typing import Any

import torch
from verl.single_controller.base.decorator import Dispatch, register
from verl.utils.device import get_device_name
from verl.workers.engine_workers import ActorRolloutRefWorker, TrainingWorker

from ascend_quant.integrations.verl import compat
from ascend_quant.integrations.verl.sending import hooks
from ascend_quant.integrations.verl.sending import sync_memory as room
from ascend_quant.integrations.verl.sending.delta_sync import Patching, telling
from ascend_quant.integrations.verl.sending.gathering import flat_shards, gathered, shares
from ascend_quant.integrations.verl.sending.kv_amax import Maxima
from ascend_quant.integrations.verl.sending.prestage import Offloaded
from ascend_quant.integrations.verl.sending.sync_metrics import Figures, SentFigures
from ascend_quant.integrations.verl.sending.wire_format import ENGINE_DTYPE, Leaving, kept_by
from ascend_quant.integrations.verl.settings import NAIVE, Patches, bucket_bytes, keeps_memory
from ascend_quant.integrations.verl.training.hooks import WITH_EXACT_TEMPERATURE
from ascend_quant.integrations.wrapping import install
from ascend_quant.kv_cache.scales import Form
from ascend_quant.names import Unquantized
from ascend_quant.schemes import Scheme
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.checksums import prepare, sending_groups
from ascend_quant.transfer.delta import Sender
from ascend_quant.transfer.validate import NamedTensor


class SendingTrainingWorker(TrainingWorker):
    """verl's worker of the trained model, extended by our weight sync.

    Attributes:
        proves: whether digests follow the weights.
        bucket: bytes that the transport carries as one.
        rounds: whether what a BF16 engine rounds leaves in BF16, see wire_format.py.
        scheme, coded: of which scheme codes leave, and for which names; none until the engines have named them.
        form: of the scales of a KV cache that follow the weights, see kv_amax.py; None if none do.
        patching: sends patches to engines elsewhere; None where none are sent.
        keeps_weights: whether an update's weights wait on the device for the sync that follows, see prestage.py.
        unquantized: by fake quantization, see training/qat_worker.py.
        figures: of the last sync.
    """

    proves, rounds, keeps_weights = True, False, False
    bucket = 0
    scheme: Scheme | None = None
    coded: Collection[str] = frozenset()
    form: Form | None = None
    unquantized: Unquantized | None = None
    patches: Patches | None = None
    patching: Patching | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if self.patches is not None:
            self.patching = Patching(Sender(self.patches.base_on))
        self.began, self.seconds = time.perf_counter(), 0.0  # until the model is there
        self.figures = SentFigures()
        super().__init__(*args, **kwargs)
        install(WITH_EXACT_TEMPERATURE)  # the engine's module is there by now
        get_weights = self.engine.get_per_tensor_param
        if self.form is not None:
            self.maxima = Maxima(self.form)
            install(hooks.WITH_KV_SCALES)
            get_weights = self.once_looked_at(get_weights)
        self.engine.get_per_tensor_param = with_weights(get_weights, self.as_sent)
        self.engine.to = self.offloaded.before(self.engine.to)

    @functools.cached_property
    def offloaded(self) -> Offloaded:
        """Rule of when the weights are offloaded to the host; where verl gathers them, it moves them too."""
        return Offloaded(lambda: self.keeps_weights and flat_shards(self.engine) is not None)

    def as_sent(self, weights: Iterable[NamedTensor]) -> Iterable[NamedTensor]:
        """Yield the engine's weights as they leave, with KV cache scales and digests (taken before patching)."""
        install(hooks.WHEN_WEIGHTS_LEAVE)  # the rollout's module is there by now
        leaving = self._leaving()
        groups = self._gathered(leaving)
        if groups is None:
            groups = leaving.each(weights)
        if self.form is not None:
            groups = chain(groups, self._scales())
        groups = self.figures.counted(groups)
        patches = self.patching is not None and self.patching.take_turn()

        def travelling(groups: Iterable[Sequence[NamedTensor]]) -> Iterator[NamedTensor]:
            if patches:  # which leave out what stands still
                return self.figures.leaving(self.patching.sender.blobs(groups))
            return self.figures.leaving(chain.from_iterable(groups))

        return sending_groups(groups, self.unquantized, travelling) if self.proves else travelling(groups)

    def once_looked_at(self, get_weights: Callable) -> Callable:
        """Wrap verl's `get_per_tensor_param`: where int8 KV cache scales are unknown, a first pass takes them."""

        @functools.wraps(get_weights)
        def get(*args: Any, **kwargs: Any) -> Any:
            if self.form is not None and self.form.by_channel and not self.maxima.has_seen:
                with self.engine.eval_mode():
                    self.maxima.look_first(self.engine.module, own_device())
            return get_weights(*args, **kwargs)

        return get

    def _scales(self) -> Iterator[list[NamedTensor]]:
        """Yield the KV cache scales; runs once the weights have left."""
        yield self.maxima.as_sent(self.engine.module, own_device())

    @functools.wraps(TrainingWorker.infer_batch)
    def infer_batch(self, data: Any) -> Any:
        with self.maxima.taking() if self.form is not None else nullcontext():
            return super().infer_batch(data)

    @functools.wraps(TrainingWorker.train_mini_batch)
    def train_mini_batch(self, data: Any) -> Any:
        with self.offloaded.updating(), self.maxima.training() if self.form is not None else nullcontext():
            return super().train_mini_batch(data)

    def _leaving(self) -> Leaving:
        """Return the wire format in which weights leave now."""
        kept = kept_by(self.engine.module) if self.rounds else ()
        return Leaving(self.rounds, kept, self.scheme, self.coded)

    def _gathered(self, leaving: Leaving) -> Iterable[list[NamedTensor]] | None:
        """Yield the whole weights in groups, all-gathered by us; None where verl is to do it."""
        shards = flat_shards(self.engine)
        if shards is None:
            return None
        groups = gathered(shares(shards, own_device(), leaving.as_what))
        return (leaving.named(self._in_buckets(group)) for group in groups)

    def _in_buckets(self, group: Sequence[NamedTensor]) -> Iterator[NamedTensor]:
        """Keep a layer's experts in one tensor if a bucket holds it: taken apart, each costs Python on both sides."""
        model_type = self.engine.model_config.hf_config.model_type
        for name, tensor in group:
            if tensor.nbytes <= self.bucket:
                yield name, tensor
            else:
                yield from compat.experts_apart([(name, tensor)], model_type)

    def send_codes(self, scheme: Scheme, names: Collection[str]) -> None:
        """Send these parameters as codes from now on; kernels are compiled here, not in their first sync."""
        self.scheme, self.coded = scheme, names
        coded = Leaving(scheme=scheme, coded=names).as_codes(compat.fsdp2_shards(self.engine) or {})
        prequantized.prepare(((shard.shape[-1], shard.dtype) for shard in coded.values()), scheme, own_device())

    def reset(self) -> None:
        """Make the model; then what its digests need, so that the first sync waits for no compiler."""
        super().reset()
        if self.proves:
            prepare(own_device())
        self.seconds = time.perf_counter() - self.began


def own_device() -> torch.device:
    """Return this process's device with its index."""
    return torch.empty(0, device=get_device_name()).device


class SendsWeights:
    """Mixin before verl's actor worker class: the worker sends its weights as `SendingTrainingWorker` does.

    Attributes:
        share: the most that an engine takes of a device's memory, see `settings.share_of_engine`.
    """

    share: float | None = None

    @functools.wraps(ActorRolloutRefWorker.init_model)
    def init_model(self) -> None:
        super().init_model()
        if self.actor is None:  # the worker of a reference alone
            return
        rollout = self.config.rollout
        self.actor.bucket = bucket_bytes(rollout)
        self.actor.keeps_weights = keeps_memory(rollout) and rollout.checkpoint_engine.backend == NAIVE
        if self.actor.patching is not None and hasattr(self, "checkpoint_engine"):
            telling(self.checkpoint_engine, self.actor.patching.against)

    @functools.wraps(ActorRolloutRefWorker.update_weights)
    async def update_weights(self, global_steps: int | None = None, mode: str = "auto") -> Any:
        rollout = self.config.rollout
        is_apart = (rollout.checkpoint_engine.backend if mode == "auto" else mode) != NAIVE
        if is_apart or not rollout.free_cache_engine:
            return await super().update_weights(global_steps, mode)
        install(hooks.WITH_CACHE_KEPT)
        found = await asyncio.to_thread(room.find_room, self.share)
        self.actor.figures.kept = found.kept if found else 0
        with room.keeping() if found else nullcontext():
            async with room.waking_early(self.rollout, found):
                return await super().update_weights(global_steps, mode)

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def seconds_of_actor(self) -> float:
        """Return the seconds that it took to make the trained model, without the reference."""
        return self.actor.seconds

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def send_codes(self, scheme: Scheme, names: Collection[str]) -> None:
        """Send these parameters as codes of this scheme from now on."""
        self.actor.send_codes(scheme, frozenset(names))

    @register(dispatch_mode=Dispatch.ONE_TO_ALL)
    def sent_figures(self) -> Figures:
        """Return bytes and milliseconds of the last weight sync in this process, as metrics."""
        return self.actor.figures.as_metrics()


def sends_weights(
    worker_class: type,
    engine_dtype: str | None = None,
    proves: bool = True,
    form: Form | None = None,
    patches: Patches | None = None,
    share: float | None = None,
) -> type:
    """Subclass verl's actor worker class so that its training worker is a `SendingTrainingWorker`.

    Args:
        engine_dtype: verl's `rollout.dtype`.
        proves: whether digests follow the weights.
        form: of the scales of a KV cache that do; None if none.
        patches: how what has changed is sent to engines elsewhere; None if all is.
        share: the most that an engine takes of a device's memory, if the trainer may keep its cache beside it.
    """
    chosen = {"proves": proves, "rounds": engine_dtype == ENGINE_DTYPE, "form": form, "patches": patches}
    actor = type(SendingTrainingWorker.__name__, (SendingTrainingWorker,), chosen)
    own = {"actor_worker_cls": actor, "share": share}
    return type(f"Sending{worker_class.__name__}", (SendsWeights, worker_class), own)


def with_weights(get_weights: Callable, as_sent: Callable[[Iterable[NamedTensor]], Iterable[NamedTensor]]) -> Callable:
    """Wrap verl's `get_per_tensor_param`: it returns what `as_sent` makes of the weights, and the LoRA settings.

    A LoRA adapter alone goes as it is, verl's own on both sides; with `lora.merge` verl merges LoRA before this.
    """

    @functools.wraps(get_weights)
    def get_weights_as_sent(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        weights, peft_config = get_weights(*args, **kwargs)
        if peft_config and kwargs.get("base_sync_done"):
            return weights, peft_config
        return as_sent(weights), peft_config

    return get_weights_as_sent
