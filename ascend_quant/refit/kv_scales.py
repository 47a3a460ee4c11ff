"""Scales of a KV cache that has one a layer and kind (fp8, e4m3): they follow the weights in every refit.

A trainer that has seen q, k and v of its step sends them behind the weights, as tensors of one element:

    model.layers.0.self_attn.attn.k_scale        float32: the largest |k| times a margin, over the largest code
    ascend_quant.kv_scales_age                   int64: steps since they were taken, 0 for those of this step

Without any, the refit takes bounds from its own weights (kv_bounds.py). Either way they are of the weights that they
serve with: they are written with every refit, and again after whatever resets the engine's buffers. An engine whose
buffers hold others may not serve.
"""

import hashlib
import logging
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Protocol

import torch

from ascend_quant.refit.errors import RefitError
from ascend_quant.refit.kv_bounds import Bounds
from ascend_quant.refit.sent import NamedTensor, checked, sent_twice
from ascend_quant.schemes.constants import FP8_MAX

logger = logging.getLogger(__name__)

KINDS = ("q", "k", "v")
LARGEST = float(FP8_MAX)
# Above what was seen, since the next samples and weights are others: too small a scale cuts off (half of what is seen
# trebles the error of log-probabilities), too large a one costs a float nothing (up to 128 times as large, on two small
# models, see docs/kv_cache.md). NeMo-RL publishes 1.05 over the 99.9 % quantile of micro-batches' maxima (its #1212).
MARGIN = 2.0
SMALLEST = 2.0**-40  # a scale of zeros
AGE = "ascend_quant.kv_scales_age"
NAME = re.compile(r"(?:^|\.)(layers\.\d+\.\w+)\.attn\.([qkv])_scale$")
SHOWN = 4  # names that one message lists

Three = tuple[float, float, float]


def scale_of(largest: torch.Tensor) -> torch.Tensor:
    """From the largest absolute values to the scales, in float32: code = value / scale."""
    return (largest.float() * (MARGIN / LARGEST)).clamp(min=SMALLEST)


def sent_name(attention: str, kind: str) -> str:
    """The tensor's, of an attention such as `model.layers.0.self_attn`."""
    return f"{attention}.attn.{kind}_scale"


@dataclass(frozen=True)
class Scales:
    """Those of one refit.

    Attributes:
        by_layer: q, k and v of each attention, by its name from `layers.` on.
        age: steps since a trainer took them; None for bounds.
    """

    by_layer: Mapping[str, Three] = field(repr=False)
    age: int | None

    @property
    def digest(self) -> str:
        """Of all names and values, 16 hex digits; the same on every rank and replica."""
        rows = (name.encode() + struct.pack("<3f", *three) for name, three in sorted(self.by_layer.items()))
        return hashlib.sha256(b"\n".join(rows)).hexdigest()[:16]

    def as_metrics(self) -> Mapping[str, float]:
        """Numbers for a training logger; without the age where these are bounds."""
        found = {"kv_scales/digest": int(self.digest, 16) % 2**32, "kv_scales/sent": int(self.age is not None)}
        return found if self.age is None else found | {"kv_scales/age": self.age}


class Buffers(Protocol):
    """An engine's, of one model."""

    @property
    def layers(self) -> Sequence[str]:
        """The attentions whose cache has scales, by their names from `layers.` on."""
        ...

    def write(self, by_layer: Mapping[str, Three]) -> None:
        """Of these attentions, in place, on the device and on the host."""

    def read(self) -> Mapping[str, Sequence[Three]]:
        """What is there of each attention: one for every place that an engine reads; waits for the device."""
        ...


class KvScales:
    """The scales of one engine worker; a `Check` of its refit.

    Args:
        buffers: where they go.
        bounds: for a refit in which none come; None for a model of which none are known.
        kind_of_model: for messages.

    Attributes:
        current: those of the last refit that closed; None before, and with dummy weights.
        unseen: whether the buffers have been written, and are to be read back before a request is served.
    """

    def __init__(self, buffers: Buffers, bounds: Bounds | None, kind_of_model: str):
        self._buffers, self._bounds, self._kind_of_model = buffers, bounds, kind_of_model
        self._sent: dict[tuple[str, str], torch.Tensor] = {}
        self._age: torch.Tensor | None = None
        self._why: str | None = None
        self.current: Scales | None = None
        self.unseen = False

    def begin(self) -> None:
        """A refit begins."""
        self._sent, self._age = {}, None
        if self._bounds is not None:
            self._bounds.begin()

    def apart(
        self, weights: Iterable[NamedTensor], count: Callable[[int, int], None]
    ) -> list[NamedTensor] | Iterator[NamedTensor]:
        """The weights without the scales among them, which are kept and counted; a list of a list."""
        rest = self._apart(weights, count)
        return list(rest) if isinstance(weights, (list, tuple)) else rest

    def _apart(self, weights: Iterable[NamedTensor], count: Callable[[int, int], None]) -> Iterator[NamedTensor]:
        for name, tensor in checked(weights):
            if name == AGE or NAME.search(name):
                self._keep(name, tensor)
                count(1, tensor.nbytes)
                continue
            if self._bounds is not None:
                self._bounds.take(name, tensor)
            yield name, tensor

    def _keep(self, name: str, tensor: torch.Tensor) -> None:
        """A copy: a bucket is overwritten by the next one."""
        wanted = torch.int64 if name == AGE else torch.float32
        if tensor.numel() != 1 or tensor.dtype != wanted:
            raise RefitError(f"{name}: {tensor.dtype} of shape {list(tensor.shape)}; send one element, {wanted}")
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
        """A refit ends: its scales are written.

        Raises:
            RefitError: some are missing, too many, of an earlier step, or no numbers to divide by.
        """
        found = self._those_sent() if self._sent or self._age is not None else self._bounds_of_weights()
        for layer, three in found.by_layer.items():
            for kind, value in zip(KINDS, three, strict=True):
                if not (isfinite(value) and value > 0):
                    raise RefitError(f"{sent_name(layer, kind)}: {value} is no scale; look for NaN in the weights")
        self._sent, self._age = {}, None
        self.current = found
        self.write()
        logger.info("%s", found)

    def _those_sent(self) -> Scales:
        wanted = [(layer, kind) for layer in self._buffers.layers for kind in KINDS]
        missing = [sent_name(*one) for one in wanted if one not in self._sent] + [AGE] * (self._age is None)
        extra = [sent_name(*one) for one in self._sent if one not in set(wanted)]
        for what, names in (("missing from this refit", missing), ("for attentions that this engine has not", extra)):
            if names:
                raise RefitError(f"{len(names)} scales of the KV cache {what}: {', '.join(names[:SHOWN])}")
        assert self._age is not None
        values = [self._sent[one] for one in wanted]
        age = int(self._age.item())
        if age != 0:
            raise RefitError(
                f"{AGE}={age}: the scales of the KV cache are of {age} steps before these weights; send those of this "
                "step, or none at all for bounds from the weights"
            )
        return Scales(_by_layer(self._buffers.layers, torch.cat(values)), age)

    def _bounds_of_weights(self) -> Scales:
        layers = self._buffers.layers
        found = [None if self._bounds is None else self._bounds.of(layer) for layer in layers]
        known = [bound for bound in found if bound is not None]
        if len(known) < len(layers):
            missing = [layer for layer, bound in zip(layers, found, strict=True) if bound is None]
            raise RefitError(
                f"no scales of the KV cache came, and {missing[0]} of this model ({self._kind_of_model}) has no known "
                f"bound: send {sent_name(missing[0], 'k')} and the like behind the weights, or set kv_cache=auto"
            )
        return Scales(_by_layer(layers, scale_of(torch.cat(known))), None)

    def write(self, layer: str | None = None) -> None:
        """Into the engine's buffers, once they are known; again after what resets them, or resets those of a layer."""
        if self.current is not None:
            known = self.current.by_layer
            self._buffers.write(known if layer is None else {layer: known[layer]})
            self._why, self.unseen = None, True

    def look(self) -> None:
        """Read the buffers back, if nobody has since they were written; waits for the device."""
        if self.unseen and self.current is not None:
            self._why, self.unseen = self._what_is_wrong(), False

    def _what_is_wrong(self) -> str | None:
        assert self.current is not None
        there = self._buffers.read()
        for layer, three in self.current.by_layer.items():
            for found in there[layer]:
                if found != three:
                    return (
                        f"the KV cache of {layer} has the scales {found}, those of this step are {three}: something "
                        "wrote them past the refit; complete one full refit to heal it"
                    )
        return None

    def why_not_servable(self) -> str | None:
        """Why no request may be served with what is in the buffers, as far as is known."""
        return self._why


def _by_layer(layers: Sequence[str], values: torch.Tensor) -> dict[str, Three]:
    """Read from the device at once."""
    here = values.cpu().view(-1, len(KINDS))
    return {layer: (float(q), float(k), float(v)) for layer, (q, k, v) in zip(layers, here, strict=True)}
