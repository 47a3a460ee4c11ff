"""Arithmetic modulo the digest's prime, 2**61 - 1, in int64 without overflow."""

import torch

from ascend_quant.oracle import PRIME

LOW = 2**32 - 1


def times(numbers: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Multiply int64 numbers by weights in [0, 2**61), modulo PRIME; the result is in [0, PRIME)."""
    numbers = numbers % PRIME
    high, low = numbers >> 31, numbers & 2**31 - 1
    weights_high, weights_low = weights >> 31, weights & 2**31 - 1
    middle = high * weights_low + low * weights_high  # carries a factor of 2**31, and 2**61 is 1
    return (2 * high * weights_high + (middle >> 30) + ((middle & 2**30 - 1) << 31) + low * weights_low) % PRIME


def halves(numbers: torch.Tensor) -> torch.Tensor:
    """Return int64 (2): the sums of the low 32 bits and of the high bits, which allow 2**31 terms."""
    return torch.stack([(numbers & LOW).sum(), (numbers >> 32).sum()])


def joined(sums: torch.Tensor) -> torch.Tensor:
    """Join sums of low and high bits (..., 2) into numbers modulo PRIME."""
    low, high = sums[..., 0], sums[..., 1]
    return (low + (high >> 29) + ((high & 2**29 - 1) << 32)) % PRIME
