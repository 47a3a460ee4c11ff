"""Quantization and dequantization of weights, and results of layers, as defined by the files in `schemes/`."""

import torch
import torch.nn.functional as F

from ascend_quant.schemes import SCHEMES, Scheme, arithmetic, definition_of
from ascend_quant.schemes.scheme import FP8_MAX, INT8_MAX

BF16_MAX = torch.finfo(torch.bfloat16).max
LARGEST_CODE = {torch.int8: INT8_MAX, torch.float8_e4m3fn: FP8_MAX}
INT8 = SCHEMES["int8"]


def quantize(w_NK: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes (..., N, K) and scales of a weight; int4 codes are returned as int8, see `pack_int4`.

    Returns:
        Scales of shape (..., N), (...), (..., ceil(N / 128), ceil(K / 128)) or (..., N, K / group), depending on which
        elements share a scale; float32, or BF16 for int4. Elements that are not finite make their scale not finite.

    Raises:
        UnregisteredScheme: the scheme is not registered.
        ValueError: the scheme does not quantize, or K is not a multiple of its group size.
    """
    return definition_of(scheme).quantize(w_NK)


def dequantize(codes_NK: torch.Tensor, scale: torch.Tensor, scheme: Scheme | None = None) -> torch.Tensor:
    """Return the float32 values (..., N, K) of codes and scales from `quantize`.

    Args:
        scheme: the scheme of the codes; None if the shape of the scales tells which elements share them (row, tensor,
            block, int4's groups).

    Raises:
        UnregisteredScheme: the scheme is not registered.
    """
    if scheme is None:
        return arithmetic.dequantize(codes_NK, scale)
    return definition_of(scheme).dequantize(codes_NK, scale)


def largest_scale(dtype: torch.dtype) -> float:
    """Return the largest scale of a finite BF16 row: BF16's largest value divided by the largest code of `dtype`."""
    return float(torch.tensor(BF16_MAX) / LARGEST_CODE[dtype])


def spoilt_rows(codes_NK: torch.Tensor, scale_N: torch.Tensor) -> torch.Tensor:
    """Return bool (N): rows of codes and float32 scales that cannot result from quantizing finite values.

    In these rows the scale is negative, not finite, or larger than any BF16 row's; or a code is e4m3's NaN.
    """
    spoilt_N = (scale_N < 0) | ~(scale_N <= largest_scale(codes_NK.dtype))
    if codes_NK.dtype == torch.int8:
        return spoilt_N
    return spoilt_N | ((codes_NK.view(torch.int8) & 0x7F) == 0x7F).any(-1)


def product(
    x_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    scale: torch.Tensor,
    scheme: Scheme,
    bias_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute x_MK @ w_NK.T + bias_N in float32 (M, N); codes and scales are those of `quantize`.

    Raises:
        UnregisteredScheme: the scheme is not registered.
    """
    return definition_of(scheme).product(x_MK, codes_NK, scale, bias_N)


def matmul(
    x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the W8A8 product x_MK @ w_NK.T + bias_N of int8, in float32 (M, N)."""
    return product(x_MK, codes_NK, scale_N, INT8, bias_N)


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    scheme: Scheme = INT8,
) -> torch.Tensor:
    """Compute a mixture of SwiGLU experts in float32 (M, K): sum over t of weight * down(silu(gate(x)) * up(x)).

    Args:
        weight_MT: routing weight of each of a token's experts.
        expert_MT: their indices into E; an index outside [0, E) contributes nothing (an expert of another rank).
        w13_codes_ENK: gate rows, then up rows (N = 2 * intermediate size).
        w2_codes_EKN: down projection (N = intermediate size).
        scheme: the scheme of codes and scales, which are stacked as `quantize` returns them.
    """
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_codes_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = product(x_MK[token], w13_codes_ENK[expert], w13_scale_EN[expert], scheme).chunk(2, dim=-1)
        down = product(F.silu(gate) * up, w2_codes_EKN[expert], w2_scale_EK[expert], scheme)
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK
