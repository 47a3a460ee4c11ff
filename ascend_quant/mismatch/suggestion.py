"""What `ignore` should name, so that the layers to blame keep their dtype, and what that costs."""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ascend_quant.mismatch.culprits import Culprit
from ascend_quant.mismatch.layers import LayerError


@dataclass(frozen=True)
class Suggestion:
    """For `ignore`.

    Attributes:
        ignore: names and patterns.
        layers: what they mean, the worst first.
        extra_bytes: what it costs, over all ranks.
        share: of all layers' squared error.
    """

    ignore: list[str]
    layers: list[str]
    extra_bytes: int
    share: float


def suggest(blamed: Sequence[Culprit], layers: Sequence[LayerError]) -> Suggestion:
    """The layers that culprits name; none where the whole model is bad."""
    names = {name for culprit in blamed for name in culprit.layers}
    out = [layer for layer in layers if layer.name in names]
    return Suggestion(
        patterns(names, layers),
        [layer.name for layer in out],
        sum(layer.extra_bytes for layer in out),
        sum(layer.share for layer in out),
    )


def patterns(names: Collection[str], layers: Sequence[LayerError]) -> list[str]:
    """`ignore` for layers by the engine's names: a regular expression for the whole of a kind, else the name."""
    found: list[str] = []
    for layer in layers:
        kind = [other.name for other in layers if other.kind == layer.kind]
        whole = len(kind) > 1 and set(kind) <= set(names)
        one = rf"re:.*\.{re.escape(layer.kind)}$" if whole else layer.name
        if layer.name in names and one not in found:
            found.append(one)
    return found
