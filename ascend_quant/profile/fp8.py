"""Which parameters an FP8 checkpoint quantizes; with the BF16 one beside it, whether they are the same weights.

Read are float8_e4m3fn weights with one scale, one per output channel (`weight_scale`), or one per block
(`weight_scale_inv`), as compressed-tensors and DeepSeek's format write them. Smoothing is not looked for: an FP8
checkpoint with changed norms is refused.
"""

from collections.abc import Callable

import torch

from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.compare import Comparison
from ascend_quant.profile.rules import Profile, ProfileError, Rule
from ascend_quant.profile.solve import same

FP8 = "F8_E4M3"
BESIDE_WEIGHT = ("weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point", "input_zero_point")
MAX_ERROR = 0.1  # relative, root mean square; FP8 itself leaves about 0.026


def compare_fp8(
    quantized: Checkpoint, reference: Checkpoint | None, progress: Callable[[str], None] = lambda name: None
) -> Comparison:
    """The names of an FP8 checkpoint's quantized parameters.

    Args:
        reference: the BF16 checkpoint; without it the names are listed and nothing is compared.

    Raises:
        ProfileError: nothing is FP8, or the checkpoints differ otherwise.
    """
    names = [name for name in quantized.names if quantized.dtype(name) == FP8]
    if not names:
        raise ProfileError(f"{quantized.folder} has no {FP8} tensor; with --fn fp8 the quantized model must be FP8")
    beside = {f"{name.removesuffix('weight')}{leaf}" for name in names for leaf in BESIDE_WEIGHT}
    plain = [name for name in quantized.names if name not in beside and quantized.dtype(name) != FP8]
    result = Comparison(Profile("fp8", {name: Rule(True) for name in names}))
    result.kinds.update({"quantized": len(names), "left alone": len(plain)})
    for name in (*names, *plain) if reference is not None else ():
        check(quantized, reference, name)
        progress(name)
    notes = {"fp8": quantized.folder.name, "bf16": None if reference is None else reference.folder.name}
    result.profile = Profile("fp8", result.profile.rules, notes)
    return result


def check(quantized: Checkpoint, reference: Checkpoint, name: str) -> None:
    """One parameter is the same in both, but for FP8's rounding."""
    weight = reference.tensor(name)
    if quantized.dtype(name) != FP8:
        if not same(weight, quantized.tensor(name)):
            raise ProfileError(f"{name}: differs between the checkpoints, and FP8 profiles have no factors")
        return
    values = dequantized(quantized, name)
    if values.shape != weight.shape:
        raise ProfileError(f"{name}: {tuple(weight.shape)} in BF16, {tuple(values.shape)} in FP8")
    error = float((values - weight.float()).norm() / weight.float().norm().clamp(min=1e-30))
    if not error <= MAX_ERROR:
        raise ProfileError(f"{name}: {error:.2f} relative error; the FP8 checkpoint is of other, or smoothed, weights")


def dequantized(checkpoint: Checkpoint, name: str) -> torch.Tensor:
    """float32 (N, K) of an FP8 weight."""
    codes_NK, layer = checkpoint.tensor(name).float(), name.removesuffix("weight")
    for leaf in ("weight_scale", "weight_scale_inv"):
        if f"{layer}{leaf}" in checkpoint:
            scale = checkpoint.tensor(f"{layer}{leaf}").float()
            break
    else:
        raise ProfileError(f"{name}: no weight_scale and no weight_scale_inv in {checkpoint.folder}")
    if leaf == "weight_scale_inv":
        size = checkpoint.config["quantization_config"]["weight_block_size"]
        scale = scale.repeat_interleave(size[0], 0).repeat_interleave(size[1], 1)
        scale = scale[: codes_NK.shape[0], : codes_NK.shape[1]]
    elif scale.numel() not in (1, codes_NK.shape[0]):
        raise ProfileError(f"{name}: scales {tuple(scale.shape)} for a weight {tuple(codes_NK.shape)}")
    return codes_NK * (scale if leaf == "weight_scale_inv" else scale.reshape(-1, 1))
