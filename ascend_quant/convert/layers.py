"""Which layers are quantized: linear ones and experts; not what engines and recipes keep in full precision.

Left alone are embeddings, heads, norms, routers, vision and audio towers with their projectors, and the few linear
layers that vLLM builds without quantization whatever the config says: DeepSeek's eh_proj (multi-token prediction) and
its indexer's wk and weights_proj.
"""

from collections.abc import Mapping, Sequence

from ascend_quant import names
from ascend_quant.convert.errors import ConvertError
from ascend_quant.names import BUILT_PLAIN, ROUTERS, Layer, PatternError

HEADS = ("lm_head", "head", "score", "classifier", "v_head")
EMBEDDINGS = ("wte", "wpe", "tok_embeddings")
TOWERS = ("visual", "vpm", "resampler", "patch_merger", "multi_modal_projector", "mm_projector")
TOWER_STARTS = ("vision", "audio")


class Ignored(names.Ignored):
    """`--ignore`: names of layers, or "re:" and a regular expression that matches from a name's beginning, as in vLLM.

    Raises:
        ConvertError: a regular expression that is none.
    """

    def __init__(self, patterns: Sequence[str] = ()):
        try:
            super().__init__(patterns)
        except PatternError as error:
            raise ConvertError(f"--{error}") from error

    def among(self, layers: Mapping[str, Layer]) -> set[str]:
        """The names of those that are not quantized.

        Args:
            layers: all of a checkpoint, see `names.layers_of`.

        Raises:
            ConvertError: a part of what engines fuse is to be ignored, or a pattern matches no layer: it is misspelt.
        """
        try:
            found = {name for name, layer in layers.items() if self.covers(layer)}
            self.check_used("IN")
        except PatternError as error:
            raise ConvertError(f"--{error}") from error
        return found


def why_unquantized(layer: str) -> str | None:
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
