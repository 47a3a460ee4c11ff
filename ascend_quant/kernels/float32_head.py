"""The language-model head in float32 where no kernel multiplies BF16 into float32: a few rows of its weight at a time.

The whole weight in float32 would be 2 GiB for a vocabulary of 152,064 and 3584 channels, at every step.
"""

import torch
import torch.nn.functional as F

ELEMENTS = 1 << 25  # of the weight, that are float32 at a time


def float32_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """x (..., K) times the weight, (..., N) in float32: products of their values, summed in float32."""
    rows = max(1, ELEMENTS // weight_NK.shape[1])
    exact = x.float()
    return torch.cat([F.linear(exact, part_NK.float()) for part_NK in weight_NK.split(rows)], dim=-1)
