"""The layers with their errors, from what the ranks saw: beside each, what the scheme gives a Gaussian layer."""

from collections.abc import Sequence
from dataclasses import dataclass

from ascend_quant.mismatch.gaussian import expert_error, linear_error

GATED = "down_proj"  # its inputs are SiLU(g) * u
FEWEST_TOKENS = 8  # of an expert


@dataclass(frozen=True)
class LayerError:
    """One layer.

    Attributes:
        name: as `ignore` takes it.
        error: the root mean square over tokens of ||e|| / ||y||, e the error of the output y.
        worst: the largest of them.
        share: of the sum of `error` squared over all layers.
        extra_bytes: what it costs to leave the layer in its dtype, over all ranks.
        gaussian: `error` of a Gaussian layer of this shape.
        channels: outlying channels of the inputs or of the weight.
        gain: how much coarser they make the others.
        experts: number and error, over the Gaussian one, of each expert that enough tokens reached.
    """

    name: str
    error: float
    worst: float
    share: float
    extra_bytes: int
    gaussian: float
    channels: tuple[int, ...] = ()
    gain: float = 1.0
    experts: tuple[tuple[int, float], ...] = ()

    @property
    def times(self) -> float:
        """How many times the error of a Gaussian layer."""
        return self.error / self.gaussian

    @property
    def kind(self) -> str:
        """The last part of the name: down_proj, experts."""
        return self.name.rpartition(".")[2]


def ranked(ranks: Sequence[Sequence[dict]], scheme: str) -> list[LayerError]:
    """The layers, the worst first, from what each rank saw (`Seen.summary`): the squares add up."""
    found = []
    for parts in zip(*ranks, strict=True):
        error_squared = map(sum, zip(*(part["error_squared"] for part in parts), strict=True))
        norm_squared = map(sum, zip(*(part["norm_squared"] for part in parts), strict=True))
        ratios = [error / norm for error, norm in zip(error_squared, norm_squared, strict=True) if norm > 0]
        if ratios:
            found.append((parts, sum(ratios) / len(ratios), max(ratios)))
    total = sum(square for _, square, _ in found)
    errors = [_layer(parts, square, worst, square / total if total else 0.0, scheme) for parts, square, worst in found]
    return sorted(errors, key=lambda layer: layer.error, reverse=True)


def _layer(parts: Sequence[dict], square: float, worst: float, share: float, scheme: str) -> LayerError:
    name, shape = parts[0]["name"], parts[0]["shape"]
    gated = name.endswith(GATED)
    gaussian = linear_error(scheme, shape[0], gated) if len(shape) == 1 else expert_error(scheme, *shape)
    rank, side = max(
        ((rank, side) for rank in range(len(parts)) for side in ("inputs", "columns")),
        key=lambda place: parts[place[0]][place[1]]["gain"],
    )
    out = parts[rank][side]
    cost = sum(part["extra_bytes"] for part in parts)
    experts = _experts(parts, gaussian)
    return LayerError(
        name, square**0.5, worst**0.5, share, cost, gaussian, tuple(out["channels"]), out["gain"], experts
    )


def _experts(parts: Sequence[dict], gaussian: float) -> tuple[tuple[int, float], ...]:
    sums: dict[int, list[float]] = {}
    for part in parts:
        for expert, ratio, tokens in part["experts"]:
            held = sums.setdefault(expert, [0.0, 0])
            held[0], held[1] = held[0] + ratio, held[1] + tokens
    return tuple(
        (expert, (ratio / tokens) ** 0.5 / gaussian)
        for expert, (ratio, tokens) in sorted(sums.items())
        if tokens >= FEWEST_TOKENS
    )
