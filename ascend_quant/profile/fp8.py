"""Which parameters an FP8 checkpoint quantizes; with the BF16 one beside it, whether they are the same weights.

Read are float8_e4m3fn weights with one scale, one per output channel (`weight_scale`), or one per 128x128 block
(`weight_scale_inv`), as compressed-tensors and DeepSeek's format write them. Smoothing is not looked for: an FP8
checkpoint with changed norms is refused.
"""

from collections.abc import Callable

import torch

from ascend_quant import oracle
from ascend_quant.profile.checkpoints import Checkpoint
from ascend_quant.profile.compare import Comparison
from ascend_quant.profile.rules import Profile, ProfileError, Rule
from ascend_quant.profile.solve import same

FP8 = "F8_E4M3"
BESIDE_WEIGHT = ("weight_scale", "weight_scale_inv", "input_scale", "weight_zero_point", "input_zero_point")
SCALES = BESIDE_WEIGHT[:2]
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
    return oracle.dequantize(*codes_and_scale(checkpoint, name))


def codes_and_scale(checkpoint: Checkpoint, name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """float8_e4m3fn codes (N, K) of an FP8 weight, and float32 scales: (N), (), or (ceil(N / 128), ceil(K / 128)).

    Raises:
        ProfileError: no scale, scales of another shape, or blocks of another size.
    """
    codes_NK, layer = checkpoint.tensor(name), name.removesuffix("weight")
    leaf = next((leaf for leaf in SCALES if f"{layer}{leaf}" in checkpoint), None)
    if leaf is None:
        raise ProfileError(f"{name}: no {' and no '.join(SCALES)} in {checkpoint.folder}")
    scale, shape = checkpoint.tensor(f"{layer}{leaf}").float(), tuple(codes_NK.shape)
    if leaf == "weight_scale_inv":
        size = checkpoint.config["quantization_config"]["weight_block_size"]
        blocks = tuple(-(-length // oracle.BLOCK) for length in shape)
        if list(size) != [oracle.BLOCK] * 2 or scale.shape != blocks:
            wanted = f"read are blocks of {oracle.BLOCK}x{oracle.BLOCK}"
            raise ProfileError(
                f"{name}: scales {tuple(scale.shape)} for blocks of {size} of a weight {shape}; {wanted}"
            )
        return codes_NK, scale
    if scale.numel() not in (1, shape[0]):
        raise ProfileError(f"{name}: scales {tuple(scale.shape)} for a weight {shape}")
    return codes_NK, scale.reshape(-1) if scale.numel() == shape[0] else scale.reshape(())
