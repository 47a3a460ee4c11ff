"""The layers that quantization hurts most, and those that stand out so far that they should keep their dtype.

A layer stands out if its error is above median + 5 MAD of its peers' errors (MAD: the median absolute deviation), above
three times their median, and if it has at least an even share of the sum of squared errors. Peers are the layers of
the same kind (all down_proj, say), because kinds differ; where there are few of them, all layers. Without the second
condition a model whose layers are all alike would lose some of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

DEVIATIONS = 5
MEDIANS = 3
FEWEST_PEERS = 5


@dataclass(frozen=True)
class LayerError:
    """One layer.

    Attributes:
        name: as `ignore` takes it.
        error: the root mean square over tokens of ||e|| / ||y||, e the error of the output y.
        worst: the largest of them.
        share: of the sum of `error` squared over all layers.
        extra_bytes: what it costs to leave the layer in its dtype, over all ranks.
    """

    name: str
    error: float
    worst: float
    share: float
    extra_bytes: int


@dataclass(frozen=True)
class Suggestion:
    """Layers to ignore, the worst first; the bytes that it costs; their share of the squared error."""

    layers: list[str]
    extra_bytes: int
    share: float


def ranked(ranks: Sequence[Sequence[dict]]) -> list[LayerError]:
    """The layers, the worst first, from what each rank saw (`watch.Layer.errors`): the squares add up."""
    found = []
    for parts in zip(*ranks, strict=True):
        name, cost = parts[0]["name"], sum(part["extra_bytes"] for part in parts)
        error_squared = map(sum, zip(*(part["error_squared"] for part in parts), strict=True))
        norm_squared = map(sum, zip(*(part["norm_squared"] for part in parts), strict=True))
        ratios = [error / norm for error, norm in zip(error_squared, norm_squared, strict=True) if norm > 0]
        if ratios:
            found.append((name, sum(ratios) / len(ratios), max(ratios), cost))
    total = sum(square for _, square, _, _ in found)
    errors = [
        LayerError(name, square**0.5, worst**0.5, square / total if total else 0.0, cost)
        for name, square, worst, cost in found
    ]
    return sorted(errors, key=lambda layer: layer.error, reverse=True)


def suggest(layers: Sequence[LayerError]) -> Suggestion:
    """The layers that stand out, see above."""
    out = [layer for layer in layers if layer.error > _limit(_peers(layer, layers)) and layer.share >= 1 / len(layers)]
    return Suggestion(
        [layer.name for layer in out], sum(layer.extra_bytes for layer in out), sum(layer.share for layer in out)
    )


def _peers(layer: LayerError, layers: Sequence[LayerError]) -> Sequence[LayerError]:
    kind = layer.name.rpartition(".")[2]
    same = [other for other in layers if other.name.rpartition(".")[2] == kind]
    return same if len(same) >= FEWEST_PEERS else layers


def _limit(layers: Sequence[LayerError]) -> float:
    middle = median(layer.error for layer in layers)
    deviation = median(abs(layer.error - middle) for layer in layers)
    return max(middle + DEVIATIONS * deviation, MEDIANS * middle)
