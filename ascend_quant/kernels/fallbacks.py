"""Fallbacks in plain torch for devices without a kernel, in chunks of rows so that the work space stays small.

fake_quantize      dequantize(quantize(w)), by the oracle
float32_product    the language-model head in float32, for devices without a kernel that multiplies BF16 into float32;
                   the whole weight in float32 would take 2 GiB for a vocabulary of 152,064 and 3584 channels
"""

import torch
import torch.nn.functional as F

from ascend_quant.schemes import Scheme, definition_of

ELEMENTS = 1 << 22  # elements that are fake-quantized at a time; each needs about 20 bytes of work space
HEAD_ELEMENTS = 1 << 25  # elements of the head's weight that are converted to float32 at a time


def fake_quantize(w_NK: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """Fake-quantize w (..., N, K): return the values of its codes and scales in its dtype, contiguous.

    The values are BF16(code * scale), whatever the dtype of w, as the int4 GEMMs compute. Rounding the result for a
    float32 weight to BF16 therefore gives the result for a BF16 weight.

    Args:
        w_NK: any float dtype, any strides; rounded to BF16 first.
        scheme: int4_g128 or int4_g32.

    Raises:
        UnregisteredScheme: the scheme is not registered.
        ValueError: K is not a multiple of the scheme's group.
    """
    definition = definition_of(scheme)
    w_RK = w_NK.detach().reshape(-1, w_NK.shape[-1])
    out_RK = torch.empty_like(w_RK, memory_format=torch.contiguous_format)
    step = max(1, ELEMENTS // max(1, w_RK.shape[1]))
    for start in range(0, w_RK.shape[0], step):
        rows = slice(start, start + step)
        out_RK[rows] = definition.rounded(w_RK[rows])
    return out_RK.view(w_NK.shape)


def float32_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """Multiply x (..., K) by the weight into float32 (..., N), with float32 sums."""
    rows = max(1, HEAD_ELEMENTS // weight_NK.shape[1])
    exact = x.float()
    return torch.cat([F.linear(exact, part_NK.float()) for part_NK in weight_NK.split(rows)], dim=-1)
