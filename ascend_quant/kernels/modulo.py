"""Arithmetic modulo the digest's prime, 2**61 - 1, in signed integers of 64 bits that never wrap around."""

import torch

from ascend_quant.oracle import PRIME

LOW = 2**32 - 1


def times(numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Products of any int64 numbers and weights in [0, 2**61), modulo PRIME, in [0, PRIME)."""
    numbers = numbers % PRIME
    high, low = numbers >> 31, numbers & 2**31 - 1
    weights_high, weights_low = weights >> 31, weights & 2**31 - 1
    middle = high * weights_low + low * weights_high  # times 2**31, and 2**61 is 1
    return (2 * high * weights_high + (middle >> 30) + ((middle & 2**30 - 1) << 31) + low * weights_low) % PRIME


def halves(numbers: torch.Tensor) -> torch.Tensor:
    """int64 (2): the sums of the low 32 bits and of the higher ones; so 2**31 numbers can be added up."""
    return torch.stack([(numbers & LOW).sum(), (numbers >> 32).sum()])


def joined(sums: torch.Tensor) -> torch.Tensor:
    """Join sums of halves (..., 2) into numbers modulo PRIME."""
    low, high = sums[..., 0], sums[..., 1]
    return (low + (high >> 29) + ((high & 2**29 - 1) << 32)) % PRIME
