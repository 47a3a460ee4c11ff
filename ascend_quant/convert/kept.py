"""What may be carried over as it is: no tensor of a quantized weight, and weights in floats alone."""

from ascend_quant.convert.errors import ConvertError
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.scales import FLOATS

BESIDE = (  # of a layer's weight, in any format
    *("weight_packed", "weight_scale", "weight_scale_inv", "weight_shape", "weight_zero_point", "weight_offset"),
    *("input_scale", "input_zero_point", "input_offset", "output_scale", "output_zero_point"),
    *("weight_g_idx", "quant_bias", "deq_scale"),
)
CACHE = ("k_scale", "v_scale", "k_zero_point", "v_zero_point")  # of a quantized cache, no weights
EIGHT_BITS = ("I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0")
WEIGHTS = ("weight", "bias", "gate_up_proj", "down_proj")  # how a tensor's name ends

MASK_RANK = 4  # of the causal masks that older checkpoints of GPT-NeoX have as attention.bias, in bool or uint8


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
