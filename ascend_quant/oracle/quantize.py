"""Codes and scales of weights, and back, as the scheme's file in `schemes/` defines them."""

import torch

from ascend_quant.schemes import Scheme, arithmetic, definition_of
from ascend_quant.schemes.constants import FP8_MAX, INT8_MAX

BF16_MAX = torch.finfo(torch.bfloat16).max
LARGEST_CODE = {torch.int8: INT8_MAX, torch.float8_e4m3fn: FP8_MAX}


def quantize(w_NK: torch.Tensor, scheme: Scheme) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes (..., N, K) and scales of a weight; int4 codes come as int8, see `pack_int4`.

    Returns:
        Scales of shape (..., N), (...), (..., ceil(N / 128), ceil(K / 128)) or (..., N, K / group), as elements share
        them; float32, BF16 for int4. What is not finite makes its scale not finite.

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
        ValueError: a scheme without codes, or K that is no multiple of its group.
    """
    return definition_of(scheme).quantize(w_NK)


def dequantize(codes_NK: torch.Tensor, scale: torch.Tensor, scheme: Scheme | None = None) -> torch.Tensor:
    """The float32 values (..., N, K) that codes with scales, as `quantize` returns them, stand for.

    Args:
        scheme: theirs; None for one of those whose scales tell by their shape what shares them (row, tensor, block,
            int4's groups).

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
    """
    if scheme is None:
        return arithmetic.dequantize(codes_NK, scale)
    return definition_of(scheme).dequantize(codes_NK, scale)


def largest_scale(dtype: torch.dtype) -> float:
    """Of codes of this dtype, that a finite BF16 row can have: its largest code times it is BF16's largest value."""
    return float(torch.tensor(BF16_MAX) / LARGEST_CODE[dtype])


def spoilt_rows(codes_NK: torch.Tensor, scale_N: torch.Tensor) -> torch.Tensor:
    """bool (N): rows of codes, with their float32 scales, that no quantization of finite values gives.

    The scale is negative, not finite, or beyond what BF16 rows have; or a code is e4m3's NaN.
    """
    spoilt_N = (scale_N < 0) | ~(scale_N <= largest_scale(codes_NK.dtype))
    if codes_NK.dtype == torch.int8:
        return spoilt_N
    return spoilt_N | ((codes_NK.view(torch.int8) & 0x7F) == 0x7F).any(-1)
