"""Which layers are quantized: linear ones and experts; not what engines and recipes keep in full precision.

Left alone are embeddings, heads, norms, routers, vision and audio towers with their projectors, and the few linear
layers that vLLM builds without quantization whatever the config says: DeepSeek's eh_proj (multi-token prediction) and
its indexer's wk and weights_proj.
"""

import re
from collections.abc import Sequence

from ascend_quant.convert.errors import ConvertError
from ascend_quant.left_alone import BUILT_PLAIN, ROUTERS

HEADS = ("lm_head", "head", "score", "classifier", "v_head")
EMBEDDINGS = ("wte", "wpe", "tok_embeddings")
TOWERS = ("visual", "vpm", "resampler", "patch_merger", "multi_modal_projector", "mm_projector")
TOWER_STARTS = ("vision", "audio")
ALWAYS_IGNORED = "lm_head"  # tied heads are no tensor of the checkpoint, but a layer all the same


class Ignored:
    """`--ignore`: names of layers, or "re:" and a regular expression that matches from a name's beginning, as in vLLM.

    Raises:
        ConvertError: a regular expression that is none.
    """

    def __init__(self, patterns: Sequence[str]):
        self.patterns = tuple(patterns)
        self._used: set[str] = set()
        try:
            self._expressions = {p: re.compile(p[3:]) for p in patterns if p.startswith("re:")}
        except re.error as error:
            raise ConvertError(f"--ignore {error.pattern!r} is no regular expression: {error}") from error

    def matches(self, layer: str) -> bool:
        """Whether a pattern names this layer; every pattern that does is then known to be of use."""
        found = {
            p for p in self.patterns if (self._expressions[p].match(layer) if p in self._expressions else p == layer)
        }
        self._used |= found
        return bool(found)

    def check(self) -> None:
        """Raise ConvertError if a pattern has matched no layer: it is misspelt."""
        self.matches(ALWAYS_IGNORED)
        if unused := [pattern for pattern in self.patterns if pattern not in self._used]:
            hint = (
                "patterns are a layer's name in IN without .weight, or re: and a regular expression from its beginning"
            )
            raise ConvertError(f"--ignore {unused[0]} matches no layer; {hint}")


def left_alone(layer: str) -> str | None:
    """Why a linear layer is not quantized by default; None if it is.

    Args:
        layer: a tensor's name without ".weight".
    """
    parts = layer.split(".")
    if any("embed" in part for part in parts) or parts[-1] in EMBEDDINGS:
        return "embedding"
    if any(part in TOWERS or part.startswith(TOWER_STARTS) for part in parts):
        return "tower"
    if parts[-1] in ROUTERS or "router" in parts:
        return "router"
    if parts[-1] in HEADS:
        return "head"
    if "norm" in parts[-1]:
        return "norm"
    return "kept by vLLM" if f".{layer}".endswith(tuple(f".{name}" for name in BUILT_PLAIN)) else None
