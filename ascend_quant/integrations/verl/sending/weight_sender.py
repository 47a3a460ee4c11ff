"""The pipeline that sends the weights of one rank. Each stage is a generator:

    gathered, or WireFormat.each    groups of whole tensors in wire format, validated; all-gathered by us, or by verl
    WeightSender._observed          times each group, digests it and counts its codes; then the KV cache scales
    delta.Sender.blobs              for delta syncs: the changed bytes of each group
    WeightSender._leaving           single tensors, counting their bytes; then the digests

`sync_memory.overlap_wake_up` adds one more stage for colocated engines, which never use delta syncs.
"""

import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from verl.utils.device import get_device_name

from ascend_quant.integrations.verl import compat
from ascend_quant.integrations.verl.sending.delta_sync import DeltaSender
from ascend_quant.integrations.verl.sending.gathering import flat_shards, gathered
from ascend_quant.integrations.verl.sending.kv_amax import AmaxObserver
from ascend_quant.integrations.verl.sending.options import SendOptions
from ascend_quant.integrations.verl.sending.prestage import Offloaded
from ascend_quant.integrations.verl.sending.sync_metrics import SyncMetrics
from ascend_quant.integrations.verl.sending.wire_format import WireFormat, kept_by
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.layer_names import Unquantized
from ascend_quant.transfer import prequantized
from ascend_quant.transfer.checksums import digests_message
from ascend_quant.transfer.delta import Sender
from ascend_quant.transfer.digests import Digests
from ascend_quant.transfer.validate import NamedTensor

Group = Sequence[NamedTensor]


class WeightSender:
    """Sends the weights of one of verl's training engines; created once, with the stages that its options need.

    Attributes:
        scheme, coded: scheme and names of the pre-quantized weights; empty until the engines have accepted them.
        amax: observes the amax behind the KV cache scales; None if none are sent.
        delta: encodes delta syncs to disaggregated engines; None if all weights are sent.
        offloaded: decides when the weights are offloaded to the host.
        metrics: metrics of the last sync.
    """

    def __init__(self, engine: Any, options: SendOptions) -> None:
        self.engine, self.options = engine, options
        self.scheme: Scheme | None = None
        self.coded: Collection[str] = frozenset()
        self.amax = None if options.form is None else AmaxObserver(options.form)
        self.delta = None if options.patches is None else DeltaSender(Sender(options.patches.base_on))
        self.offloaded = Offloaded(lambda: options.keeps_weights and flat_shards(engine) is not None)
        self.metrics = SyncMetrics()
        self._digests = Digests() if options.proves else None
        self._observers: list[Callable[[Group], None]] = [] if self._digests is None else [self._digests.add_all]

    def as_sent(self, weights: Iterable[NamedTensor], unquantized: Unquantized | None) -> Iterator[NamedTensor]:
        """Return the engine's weights in their wire format, with KV cache scales and digests (computed before a delta).

        Args:
            weights: verl's iterator over the weights; not consumed if we gather the weights ourselves.
            unquantized: the layers that fake quantization ignores, if it is used.
        """
        groups = self._observed(self._groups(weights))
        is_delta = self.delta is not None and self.delta.take_turn()
        return self._leaving(self.delta.sender.blobs(groups) if is_delta else chain.from_iterable(groups), unquantized)

    def send_codes(self, scheme: Scheme, names: Collection[str]) -> None:
        """Send these parameters pre-quantized from now on; compiles their kernels before the first such sync."""
        if self.scheme is None:
            self._observers.append(self.metrics.count_codes)
        self.scheme, self.coded = scheme, names
        coded = WireFormat(scheme=scheme, coded=names).as_codes(compat.fsdp2_shards(self.engine) or {})
        prequantized.prepare(((shard.shape[-1], shard.dtype) for shard in coded.values()), scheme, own_device())

    def calibrated(self, get_weights: Callable) -> Callable:
        """Wrap verl's `get_per_tensor_param`: if int8 KV cache scales are unknown, a calibration pass measures them."""

        @functools.wraps(get_weights)
        def get(*args: Any, **kwargs: Any) -> Any:
            if self.amax is not None and self.amax.form.by_channel and not self.amax.has_seen:
                with self.engine.eval_mode():
                    self.amax.calibrate_once(self.engine.module, own_device())
            return get_weights(*args, **kwargs)

        return get

    def observing(self) -> AbstractContextManager[None]:
        """Observe the amax of a forward pass, if KV cache scales are sent."""
        return nullcontext() if self.amax is None else self.amax.observe()

    def observing_update(self) -> AbstractContextManager[None]:
        """Observe the amax of an update that no forward pass precedes, if KV cache scales are sent."""
        return nullcontext() if self.amax is None else self.amax.observe_update()

    def _groups(self, weights: Iterable[NamedTensor]) -> Iterator[Group]:
        """Return groups of whole weights in their wire format, all-gathered by us if possible, else by verl."""
        kept = kept_by(self.engine.module) if self.options.rounds else ()
        wire = WireFormat(self.options.rounds, kept, self.scheme, self.coded)
        shards = flat_shards(self.engine)
        if shards is None:
            return wire.each(weights)
        return gathered(shards, own_device(), wire.dtype_or_scheme, lambda group: wire.named(self._in_buckets(group)))

    def _in_buckets(self, group: Group) -> list[NamedTensor]:
        """Keep a layer's stacked experts if they fit into a bucket, since splitting costs Python time on both sides."""
        found: list[NamedTensor] = []
        for pair in group:
            fits = pair[1].nbytes <= self.options.bucket
            found += [pair] if fits else compat.experts_apart([pair], self.engine.model_config.hf_config.model_type)
        return found

    def _observed(self, groups: Iterator[Group]) -> Iterator[Group]:
        """Yield the groups of a sync, recording metrics and digests, then the KV cache scales if there are any."""
        self.metrics.begin()
        if self._digests is not None:
            self._digests.clear()
        while (group := self.metrics.time_gathering(lambda: next(groups, None))) is not None:
            yield self._seen(group)
        if self.amax is not None and (scales := self.metrics.time_gathering(self._scales)):
            yield self._seen(scales)

    def _seen(self, group: Group) -> Group:
        for observe in self._observers:
            observe(group)
        return group

    def _scales(self) -> Group:
        return self.amax.as_sent(self.engine.module, own_device())

    def _leaving(self, weights: Iterable[NamedTensor], unquantized: Unquantized | None) -> Iterator[NamedTensor]:
        """Yield the tensors to send, then their digests; counts the bytes of the tensors."""
        device = torch.device("cpu")
        for name, tensor in weights:
            self.metrics.count_bytes(tensor)
            device = tensor.device
            yield name, tensor
        if self._digests is not None:
            yield digests_message(self._digests, unquantized, device)


def own_device() -> torch.device:
    """Return this process's device with its index."""
    return torch.empty(0, device=get_device_name()).device
