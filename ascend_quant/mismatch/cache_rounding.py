"""What a cache keeps of keys and values: rounded to its codes, and back, in float32.

auto    BF16
int8    of each token and head the largest magnitude becomes 127; the nearest code, ties to even
fp8     e4m3 with one scale for all (1 unless another is given); what lies beyond 448 becomes 448
"""

import torch

from ascend_quant.oracle.cache import dequantize_cache, quantize_cache
from ascend_quant.schemes.constants import FP8_MAX


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Keys or values (..., D)."""
    return x.bfloat16().float()


def int8(x: torch.Tensor) -> torch.Tensor:
    """Keys or values (..., D), a scale for each row of D: the oracle's."""
    return dequantize_cache(*quantize_cache(bf16(x)))


def fp8(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Keys or values of any shape."""
    return (bf16(x) / scale).clamp(-FP8_MAX, FP8_MAX).to(torch.float8_e4m3fn).float() * scale


ROUNDINGS = {"auto": bf16, "int8": int8, "fp8": fp8}
