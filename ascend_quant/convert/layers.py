"""Which layers are quantized: linear ones and experts; and what may be carried over beside them, as it is.

What engines and recipes keep in full precision is left alone: embeddings, heads, norms, routers, vision and audio
towers with their projectors, and the few linear layers that vLLM builds without quantization whatever the config says:
DeepSeek's eh_proj (multi-token prediction) and its indexer's wk and weights_proj.

A tensor of a quantized weight is not carried over, nor a weight that is no float.
"""

from collections.abc import Mapping, Sequence

from ascend_quant import names
from ascend_quant.convert.errors import ConvertError
from ascend_quant.names import BUILT_PLAIN, ROUTERS, Layer, PatternError
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.scales import FLOATS

HEADS = ("lm_head", "head", "score", "classifier", "v_head")
EMBEDDINGS = ("wte", "wpe", "tok_embeddings")
TOWERS = ("visual", "vpm", "resampler", "patch_merger", "multi_modal_projector", "mm_projector")
TOWER_STARTS = ("vision", "audio")

BESIDE = (  # of a layer's weight, in any format
    *("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "weight_offset"),
    *("input_scale", "input_zero_point", "input_offset", "output_scale", "output_zero_point"),
    *("weight_g_idx", "quant_bias", "deq_scale"),
)
CACHE = ("k_scale", "v_scale", "k_zero_point", "v_zero_point")  # of a quantized cache, no weights
EIGHT_BITS = ("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0")
WEIGHTS = ("weight", "bias", "gate_up_proj", "down_proj")  # how a tensor's name ends

MASK_RANK = 4  # of the causal masks that older checkpoints of GPT-NeoX have as attention.bias, in bool or uint8


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


def check_kept(checkpoint: Checkpoint, name: str) -> None:
    """Raise ConvertError if a tensor belongs to a quantized weight, or is a weight that is no float."""
    dtype, (layer, _, leaf) = checkpoint.dtype(name), name.rpartition(".")
    if leaf == "bias" and len(checkpoint.shape(name)) == MASK_RANK:
        return
    if leaf in BESIDE:
        raise ConvertError(f"{name} belongs to a quantized weight, and {layer} has none that is known; remove it")
    if dtype in EIGHT_BITS or (leaf.endswith(WEIGHTS) and dtype not in FLOATS):
        known = f"weights are {', '.join(FLOATS)}"
        lacking = f", and there is no {name}_scale" if f"{name}_scale" not in checkpoint else ""
        raise ConvertError(f"{name} is {dtype}{lacking}: is it quantized, in a way that is not known? {known}")
