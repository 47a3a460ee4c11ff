"""What the scales of a quantized weight must be, in every format."""

import torch

from ascend_quant.dtypes import FLOATS as TORCH_FLOATS
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.rules import ProfileError

ZERO_POINTS = ("weight_zero_point", "weight_offset")
SAFETENSORS = {torch.bfloat16: "BF16", torch.float16: "F16", torch.float32: "F32", torch.float64: "F64"}
FLOATS = tuple(SAFETENSORS[dtype] for dtype in TORCH_FLOATS)  # as safetensors calls them


def check_scale(name: str, scale: torch.Tensor) -> None:
    """Raise ProfileError if a scale of the weight `name` is negative, NaN or infinite. `scale`: float32."""
    if not bool((scale.isfinite() & (scale >= 0)).all()):
        raise ProfileError(f"{name}: a scale is negative, NaN or infinite")


def check_symmetric(checkpoint: Checkpoint, name: str) -> None:
    """Raise ProfileError if the weight `name` has zero points other than 0."""
    for offset in (f"{name.removesuffix('weight')}{leaf}" for leaf in ZERO_POINTS):
        if offset in checkpoint and bool(checkpoint.tensor(offset).any()):
            raise ProfileError(f"{name}: asymmetric ({offset} is not 0); only symmetric weights are supported")
