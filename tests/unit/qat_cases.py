"""The reference of the tests of fake quantization."""

import torch

from ascend_quant import oracle
from ascend_quant.schemes import get_scheme


def engine_weight(w: torch.Tensor, name: str) -> torch.Tensor:
    """Return the BF16 values that an int4 engine computes with, in the dtype of w (..., N, K)."""
    values = oracle.dequantize(*oracle.quantize(w.detach(), get_scheme(name)))
    return values.to(torch.bfloat16).to(w.dtype)
