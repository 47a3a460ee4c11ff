"""Codes and scales of weights, and back, as the scheme's file in `schemes/` defines them."""

import torch

from ascend_quant.schemes import Scheme, arithmetic, definition_of


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
