"""What a cache keeps of keys and values: rounded to its codes, and back, in float32.

auto    BF16
int8    of each token and head the largest magnitude becomes 127; the nearest code, ties to even
fp8     e4m3 with one scale for all (1 unless another is given); what lies beyond 448 becomes 448
"""

import torch

INT8_LARGEST, FP8_LARGEST = 127, 448.0


def bf16(x: torch.Tensor) -> torch.Tensor:
    """Keys or values (..., D)."""
    return x.bfloat16().float()


def int8(x: torch.Tensor) -> torch.Tensor:
    """Keys or values (..., D), a scale for each row of D."""
    kept = bf16(x)
    scale = kept.abs().amax(-1, keepdim=True) / INT8_LARGEST
    codes = (kept / scale.where(scale > 0, 1)).round().clamp(-INT8_LARGEST, INT8_LARGEST)
    return codes * scale


def fp8(x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    """Keys or values of any shape."""
    return (bf16(x) / scale).clamp(-FP8_LARGEST, FP8_LARGEST).to(torch.float8_e4m3fn).float() * scale


ROUNDINGS = {"auto": bf16, "int8": int8, "fp8": fp8}
