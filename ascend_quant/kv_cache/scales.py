"""Static KV cache scales (stored outside the cache), updated with the weights in every refit.

    fp8 (e4m3)           one per layer for queries, keys and values each
    int8 (Ascend's C8)   one per layer and channel of each key and value head

A trainer that has observed q, k and v of its step sends them after the weights:

    model.layers.0.self_attn.attn.k_scale        float32, one element or one per channel of all heads: the amax of k
                                                 times a margin, over the largest code
    ascend_quant.kv_scales_age                   int64: steps since the observation, 0 for this step

Otherwise the refit computes bounds from its own weights (bounds.py), for fp8 only. Either way the scales belong to the
current weights: every refit writes them, and they are written again whenever the engine's buffers are reset. An engine
with other values in these buffers refuses to serve.
"""

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch

from ascend_quant.kv_cache.bounds import Bounds
from ascend_quant.refit import Check, Received, RefitError
from ascend_quant.schemes.scheme import FP8_MAX, INT8_MAX
from ascend_quant.transfer.validate import NamedTensor, sent_twice

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Form:
    """The scales of one cache dtype.

    Attributes:
        cache: name of the dtype in the option kv_cache.
        kinds: which of queries, keys and values have scales.
        largest: the largest quantized value.
        margin: the factor on the observed amax, since later samples and weights differ.
        by_channel: whether there is a scale per channel of each head; otherwise one per layer.
    """

    cache: str
    kinds: tuple[str, ...]
    largest: float
    margin: float
    by_channel: bool = False


# A scale that is too small clips: half of the observed amax triples the error of log-probabilities. One that is too
# large costs a float dtype nothing (up to 128 times, on two small models, see docs/kv_cache.md), but an integer dtype
# its bits: there 2 instead of 1.25 costs 1.6 times the error, and 1 up to twice, if few tokens were observed. NeMo-RL
# uses 1.05 times the 99.9 % quantile of micro-batch maxima (its #1212), for fp8.
FP8 = Form("fp8", ("q", "k", "v"), float(FP8_MAX), margin=2.0)
INT8 = Form("int8", ("k", "v"), float(INT8_MAX), margin=1.25, by_channel=True)
SMALLEST = 2.0**-40  # the scale if all values are zero
AGE = "ascend_quant.kv_scales_age"
NAME = re.compile(r"(?:^|\.)(layers\.\d+\.\w+)\.attn\.([qkv])_scale$")
SHOWN = 4  # names that one message lists


def scale_of(largest: torch.Tensor, form: Form) -> torch.Tensor:
    """Return float32 scales for amax: code = value / scale."""
    return (largest.float() * (form.margin / form.largest)).clamp(min=SMALLEST)


def sent_name(attention: str, kind: str) -> str:
    """Return the name under which a scale is sent, for an attention layer such as `model.layers.0.self_attn`."""
    return f"{attention}.attn.{kind}_scale"


@dataclass(frozen=True)
class Scales:
    """The KV cache scales of one refit.

    Attributes:
        by_layer: float32 (kinds, channels) on the host, by the attention layer's name from `layers.` on.
        age: steps since a trainer observed them; None for bounds from the weights.
    """

    by_layer: Mapping[str, torch.Tensor] = field(repr=False)
    age: int | None

    @property
    def digest(self) -> str:
        """The checksum of all names and values, 16 hex digits; the same on every rank and replica."""
        rows = (name.encode() + values.numpy().tobytes() for name, values in sorted(self.by_layer.items()))
        return hashlib.sha256(b"\n".join(rows)).hexdigest()[:16]

    def as_metrics(self) -> Mapping[str, float]:
        """Return metrics for a training logger, including whether the trainer sent the scales or they are bounds."""
        return {"kv_scales/sent": int(self.age is not None)}


class Buffers(Protocol):
    """The buffers in which an engine stores the KV cache scales of one model.

    Attributes:
        form: the form of its scales.
        channels: number of channels of a layer over all ranks, which is the size of a sent tensor.
    """

    form: Form
    channels: int

    @property
    def layers(self) -> Sequence[str]:
        """The attention layers whose cache has scales, by their names from `layers.` on."""
        ...

    def kept(self, values: torch.Tensor) -> Sequence[torch.Tensor]:
        """Return the values of a layer's buffers on this rank for scales (kinds, channels), float32 on the host."""
        ...

    def write(self, by_layer: Mapping[str, torch.Tensor]) -> None:
        """Write the scales (kinds, channels) of these attention layers in place, on the device and on the host."""

    def read(self) -> Mapping[str, Sequence[torch.Tensor]]:
        """Read back the buffers of each attention layer, in the form of `kept`; waits for the device."""
        ...


class KvScales(Check):
    """The scales of one engine worker.

    Args:
        buffers: the engine's buffers.
        bounds: bounds for a refit without sent scales; None for a model without known bounds.
        kind_of_model: description of the model, for messages.

    Attributes:
        current: the scales of the last closed refit; None before it, and with dummy weights.
        needs_look: whether the buffers have been written and must be read back before a request is served.
    """

    name = "kv_scales"

    def __init__(self, buffers: Buffers, bounds: Bounds | None, kind_of_model: str):
        self._buffers, self._bounds, self._kind_of_model = buffers, bounds, kind_of_model
        self._sent: dict[tuple[str, str], torch.Tensor] = {}
        self._age: torch.Tensor | None = None
        self._why: str | None = None
        self.current: Scales | None = None
        self.needs_look = False

    @property
    def report(self) -> Scales | None:
        return self.current

    def begin(self) -> None:
        """Begin a refit."""
        self._sent, self._age = {}, None
        if self._bounds is not None:
            self._bounds.begin()

    def take(self, weights: Iterable[NamedTensor], received: Received) -> Iterable[NamedTensor]:
        """Return the weights without the scales, which are stored and counted."""
        rest = self._without_scales(weights, received)
        return list(rest) if isinstance(weights, (list, tuple)) else rest

    def _without_scales(self, weights: Iterable[NamedTensor], received: Received) -> Iterator[NamedTensor]:
        for name, tensor in weights:
            if name == AGE or NAME.search(name):
                self._keep(name, tensor)
                received.count(1, tensor.nbytes)
                continue
            if self._bounds is not None:
                self._bounds.take(name, tensor)
            yield name, tensor

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        """Copy a tensor of scales, since the next bucket may overwrite it, or read their age."""
        wanted, count = (torch.int64, 1) if name == AGE else (torch.float32, self._buffers.channels)
        if tensor.numel() != count or tensor.dtype != wanted:
            raise RefitError(
                f"{name}: {tensor.dtype} of shape {list(tensor.shape)}; send {wanted} with {count} elements"
            )
        kept = tensor.detach().flatten().clone()
        if name == AGE:
            if self._age is not None:
                raise sent_twice(name)
            self._age = kept
            return
        found = NAME.search(name)
        assert found is not None
        if found.groups() in self._sent:
            raise sent_twice(name)
        self._sent[found[1], found[2]] = kept

    def check(self, entries: Mapping[str, object]) -> None:
        """End a refit: check its scales, and write them to the engine's buffers.

        Raises:
            RefitError: scales are missing, unexpected, outdated, or invalid as divisors.
        """
        found = self._those_sent() if self._sent or self._age is not None else self._bounds_of_weights()
        for layer, values in found.by_layer.items():
            wrong = ~(values.isfinite() & (values > 0))
            if wrong.any():
                kind = self._buffers.form.kinds[int(wrong.any(1).nonzero()[0])]
                value = float(values[wrong][0])
                raise RefitError(f"{sent_name(layer, kind)}: {value} is not a valid scale; look for NaN in the weights")
        self._sent, self._age = {}, None
        self.current = found
        self.write()
        logger.info("%s", found)

    def _those_sent(self) -> Scales:
        wanted = [(layer, kind) for layer in self._buffers.layers for kind in self._buffers.form.kinds]
        missing = [sent_name(*one) for one in wanted if one not in self._sent] + [AGE] * (self._age is None)
        extra = [sent_name(*one) for one in self._sent if one not in set(wanted)]
        for what, names in (
            ("missing from this refit", missing),
            ("for attention layers that this engine does not have", extra),
        ):
            if names:
                raise RefitError(f"{len(names)} KV cache scales {what}: {', '.join(names[:SHOWN])}")
        assert self._age is not None
        values = [self._sent[one] for one in wanted]
        age = int(self._age.item())
        if age != 0:
            raise RefitError(
                f"{AGE}={age}: the KV cache scales are {age} steps older than these weights; send those of "
                "the same step"
            )
        return Scales(self._by_layer(torch.cat(values)), age)

    def _bounds_of_weights(self) -> Scales:
        layers = self._buffers.layers
        found = [None if self._bounds is None else self._bounds.of(layer) for layer in layers]
        known = [bound for bound in found if bound is not None]
        if len(known) < len(layers):
            missing = [layer for layer, bound in zip(layers, found, strict=True) if bound is None]
            raise RefitError(
                f"no KV cache scales were received, and no bound is known for {missing[0]} of this model "
                f"({self._kind_of_model}): send {sent_name(missing[0], 'k')} and the other scales after the "
                "weights, or set kv_cache=auto"
            )
        return Scales(self._by_layer(scale_of(torch.cat(known), self._buffers.form)), None)

    def _by_layer(self, values: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copy the scales of all layers to the host at once, and return them by the layer's name."""
        layers = self._buffers.layers
        here = values.cpu().view(len(layers), len(self._buffers.form.kinds), -1)
        return dict(zip(layers, here, strict=True))

    def settle(self, number: int, digest: int) -> int:
        self.cache_since = number
        return digest

    def cache_woke(self) -> None:
        """Write the scales again, since vLLM sets all of them to 1 when the memory of its KV cache wakes up."""
        self.write()

    def write(self, layer: str | None = None) -> None:
        """Write the scales to the engine's buffers once they are known, and again after anything resets them."""
        if self.current is not None:
            known = self.current.by_layer
            self._buffers.write(known if layer is None else {layer: known[layer]})
            self._why, self.needs_look = None, True

    def look(self) -> None:
        """Read the buffers back, unless that was done since they were written; waits for the device."""
        if self.needs_look and self.current is not None:
            self._why, self.needs_look = self._what_is_wrong(), False

    def _what_is_wrong(self) -> str | None:
        assert self.current is not None
        there = self._buffers.read()
        for layer, values in self.current.by_layer.items():
            for found, wanted in zip(there[layer], self._buffers.kept(values), strict=True):
                differ = found != wanted  # also true for NaN
                if differ.any():
                    return (
                        f"the KV cache of {layer} has the scales {_shown(found[differ])}, but those of this step are "
                        f"{_shown(wanted[differ])}: something changed them outside the refit; complete one full refit "
                        "to repair it"
                    )
        return None

    def why_not_servable(self) -> str | None:
        """Return why no request may be served with the scales in the buffers; None if there is no known reason."""
        return self._why


def _shown(values: torch.Tensor) -> str:
    more = ", .." if len(values) > SHOWN else ""
    return ", ".join(f"{float(value):g}" for value in values[:SHOWN]) + more
