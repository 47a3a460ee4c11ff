"""The arithmetic that schemes share: symmetric quantization, rounded to nearest even (there is no stochastic rounding).

A scale belongs to a row over the reduction dimension K, a tensor, a 128x128 block, or a group of adjacent elements of a
row:

    int8:  scale = absmax / 127  (float32)      code = round_half_even(value / scale), clamped to [-127, 127]
    fp8:   scale = absmax / 448  (float32)      code = value / scale, clamped to [-448, 448], as float8_e4m3fn
    int4:  scale = BF16(absmax / 7)             code = round_half_even(value / scale), clamped to [-7, 7]
    absmax < 2**-100 (all-zero rows)  ->  scale and codes are 0, since devices differ in denormals

Weights are rounded to BF16 first (some trainers send float32; the engine would round as well), except with a profile:
then they are multiplied by its factors in float32 (`smoothed`) and quantized without rounding, with their own scale
(`quantize_rows`) or a fixed one (`quantize_given`).
"""

import torch
import torch.nn.functional as F

from ascend_quant.schemes.scheme import BLOCK, FP8_MAX, INT4_MAX, INT8_MAX, INT8_MIN, NIBBLES, TINY


def quantize_rows(values: torch.Tensor, absmax: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of float rows.

    Args:
        values: (..., K) float; not rounded to BF16.
        absmax: (...) float32, absmax of each *whole* row if `values` contains only a slice of K (a row-parallel shard).
            [default: that of `values`]

    Returns:
        int8 codes (..., K) and float32 scales (...). A NaN or Inf row has a non-finite scale.
    """
    values = values.float()
    if absmax is None:
        absmax = values.abs().amax(dim=-1)
    scale = scale_of(absmax, INT8_MAX)
    ratio = torch.where(scale.unsqueeze(-1) == 0, torch.zeros_like(values), values / scale.unsqueeze(-1))
    return ratio.round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def quantize_weight(w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (..., N, K) and scales (..., N) of a weight, after rounding it to BF16."""
    return quantize_rows(w_NK.to(torch.bfloat16), absmax_N)


def smoothed(
    w_NK: torch.Tensor,
    input_factor_K: torch.Tensor | None = None,
    output_factor_N: torch.Tensor | None = None,
    rounded: bool = False,
) -> torch.Tensor:
    """Return w_NK * input_factor_K * output_factor_N[:, None] in float32, contiguous, after rounding w to BF16.

    Args:
        w_NK: any float dtype; a vector (N) is treated as one column.
        input_factor_K: float32, (N) for a vector; None means ones.
        output_factor_N: float32; None means ones.
        rounded: whether to round to BF16 after each factor, as tools do that smooth a BF16 model.
    """
    x_NK = torch.empty_like(w_NK, dtype=torch.float32, memory_format=torch.contiguous_format)
    x_NK.copy_(w_NK.to(torch.bfloat16))
    by_row = None if output_factor_N is None else output_factor_N.view(-1, *[1] * (x_NK.dim() - 1))
    for factor in (input_factor_K, by_row):
        if factor is not None:
            x_NK *= factor
            if rounded:
                x_NK.copy_(x_NK.to(torch.bfloat16))
    return x_NK


def quantize_given(x_NK: torch.Tensor, scale_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes of float32 rows with fixed scales, and which of them were clamped.

    Codes range from -128 to 127, as in FlashRL and in llm-compressor's checkpoints, whose scale is absmax / 127.5, so
    that a negative value of the largest magnitude has the code -128.

    Args:
        scale_N: float32, finite, 0 or more; a row of scale 0 has codes 0.

    Returns:
        int8 codes (N, K), and bool (N, K): whether the rounded quotient was outside [-128, 127] or undefined.
    """
    x_NK, scale_N1 = x_NK.float(), scale_N.unsqueeze(-1)
    zero_N1 = scale_N1 == 0
    rounded_NK = torch.where(zero_N1, 0.0, x_NK / torch.where(zero_N1, 1.0, scale_N1)).round()
    lost_NK = (rounded_NK > INT8_MAX) | (rounded_NK < INT8_MIN) | (zero_N1 & (x_NK != 0))
    return rounded_NK.clamp(INT8_MIN, INT8_MAX).to(torch.int8), lost_NK


def quantize_fp8_rows(w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Return float8_e4m3fn codes (..., N, K) and float32 scales (..., N) of a weight, after rounding it to BF16."""
    return quantize_fp8_tokens(w_NK.to(torch.bfloat16), absmax_N)


def quantize_fp8_tokens(x_MK: torch.Tensor, absmax_M: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize values to fp8 codes with a per-token scale, without rounding to BF16 first."""
    values = x_MK.float()
    absmax_M = values.abs().amax(dim=-1) if absmax_M is None else absmax_M
    return _fp8(values, absmax_M.unsqueeze(-1)), scale_of(absmax_M, FP8_MAX)


def quantize_fp8_tensor(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (..., N, K) and one scale (...) per matrix: see `quantize_fp8_rows`."""
    values = w_NK.to(torch.bfloat16).float()
    absmax = values.abs().amax(dim=(-2, -1))
    return _fp8(values, absmax[..., None, None]), scale_of(absmax, FP8_MAX)


def quantize_fp8_blocks(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (..., N, K) and scales (..., ceil(N / 128), ceil(K / 128)), one per 128x128 block."""
    values = w_NK.to(torch.bfloat16).float()
    *stack, rows, columns = values.shape
    padded = F.pad(values, (0, -columns % BLOCK, 0, -rows % BLOCK))
    blocks = padded.view(*stack, padded.shape[-2] // BLOCK, BLOCK, padded.shape[-1] // BLOCK, BLOCK)
    absmax = blocks.abs().amax(dim=(-3, -1))
    return _fp8(values, _spread(absmax, rows, columns)), scale_of(absmax, FP8_MAX)


def quantize_groups(w_NK: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int4 codes (..., N, K), as int8, and BF16 scales (..., N, K / group): the reference of group quantization.

    The weight is rounded to BF16 first.

    Raises:
        ValueError: K is not a multiple of `group`.
    """
    if w_NK.shape[-1] % group:
        raise ValueError(f"rows of {w_NK.shape[-1]} elements are not divisible into int4 groups of {group}")
    values = torch.unflatten(w_NK.to(torch.bfloat16).float(), -1, (-1, group))
    scale = scale_of(values.abs().amax(dim=-1), INT4_MAX).to(torch.bfloat16)
    divisor = scale.float().unsqueeze(-1)
    ratio = torch.where(divisor == 0, 0.0, values / divisor)
    return ratio.round().clamp(-INT4_MAX, INT4_MAX).to(torch.int8).flatten(-2), scale


def pack_int4(codes_NK: torch.Tensor) -> torch.Tensor:
    """Pack eight codes + 8 per int32 (..., K / 8), the first in the lowest bits, as compressed-tensors does."""
    nibbles = torch.unflatten(codes_NK.int() + 8, -1, (-1, NIBBLES))
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=codes_NK.device)
    return (nibbles << shifts).sum(-1, dtype=torch.int32)


def unpack_int4(packed: torch.Tensor) -> torch.Tensor:
    """Unpack the int8 codes (..., K) that `pack_int4` packed into int32 words."""
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=packed.device)
    return ((packed.unsqueeze(-1) >> shifts & 15) - 8).to(torch.int8).flatten(-2)


def scale_of(absmax: torch.Tensor, largest: int) -> torch.Tensor:
    """Return absmax / largest, correctly rounded; torch on CUDA would multiply by the reciprocal of a Python number."""
    absmax = absmax.float()
    return torch.where(absmax < TINY, 0.0, absmax / torch.full_like(absmax, largest))


def _fp8(values: torch.Tensor, absmax: torch.Tensor) -> torch.Tensor:
    scale = scale_of(absmax, FP8_MAX)
    ratio = torch.where(scale == 0, torch.zeros_like(values), values / scale)
    return ratio.clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn)


def _spread(per_block: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """Repeat the value of each block for its elements (rows, columns)."""
    return per_block.repeat_interleave(BLOCK, -2).repeat_interleave(BLOCK, -1)[..., :rows, :columns]


def dequantize(codes_NK: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Return the float32 values (..., N, K) of codes and scales; the shapes tell which elements share a scale."""
    shared = codes_NK.dim() - scale.dim()  # number of dimensions that one scale covers
    if shared == 0 and codes_NK.dtype == torch.int8:
        values = torch.unflatten(codes_NK.float(), -1, (scale.shape[-1], -1))
        return (values * scale.float().unsqueeze(-1)).flatten(-2)
    if shared == 0:
        return codes_NK.float() * _spread(scale, *codes_NK.shape[-2:])
    return codes_NK.float() * scale[(..., *[None] * shared)]


def scaled_product(
    x_codes_MK: torch.Tensor,
    x_scale_M: torch.Tensor,
    codes_NK: torch.Tensor,
    scale: torch.Tensor,
    bias_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the product of codes, float32 (M, N): summed in float64, then `dequantized_sums`."""
    sum_MN = (x_codes_MK.double() @ codes_NK.double().T).float()
    return dequantized_sums(sum_MN, x_scale_M, scale, bias_N)


def dequantized_sums(
    sum_MN: torch.Tensor, x_scale_M: torch.Tensor, scale: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Return x_scale * (scale * sum) + bias in float32 (M, N), the epilogue of every W8A8 product.

    The order is that of vLLM's cutlass kernels (csrc/.../scaled_mm_epilogues): the weight's scale first, each product
    rounded to float32; a bias is added in one fused multiply-add. All kernels must share this order, since decode and
    prefill may use different kernels, and log-probabilities would differ.
    """
    out_MN, x_scale_M1 = sum_MN * scale, x_scale_M.unsqueeze(-1)
    return out_MN * x_scale_M1 if bias_N is None else fused_multiply_add(out_MN, x_scale_M1, bias_N.float())


def fused_multiply_add(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
    """Return x * y + z of float32 values, rounded once, like the FMA instruction.

    float64 holds x * y; its sum with z is rounded to odd, so that rounding it again to float32 gives the nearest value
    (Boldo and Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to odd").
    """
    product, z = x.double() * y.double(), z.double()
    total = product + z
    back = total - product
    error = (product - (total - back)) + (z - back)  # the exact rounding error of the sum (Knuth's TwoSum)
    bits = total.view(torch.int64)
    lost = (error != 0) & total.isfinite() & (bits & 1 == 0)
    away = (error > 0) == (total > 0)  # away from zero: the next bit pattern is the next larger magnitude
    return torch.where(lost, bits + torch.where(away, 1, -1), bits).view(torch.float64).float()


def round_trip_fp8_groups(x_MK: torch.Tensor) -> torch.Tensor:
    """Quantize activations (M, K) to fp8 with a scale per 128 channels of a token, and dequantize to float32."""
    length = x_MK.shape[1]
    groups_MJB = torch.unflatten(F.pad(x_MK, (0, -length % BLOCK)), -1, (-1, BLOCK))
    return dequantize(*quantize_fp8_tokens(groups_MJB)).flatten(-2)[:, :length]
