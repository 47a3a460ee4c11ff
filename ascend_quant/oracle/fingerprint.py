"""Fingerprints of tensors' bytes that are the same on every device, and whose parts add up to the whole."""

from collections.abc import Iterable

import torch

COLUMN_STEP = 0x3C6EF372  # even, so that 1 + c * COLUMN_STEP is odd
ROW_SEEDS = (0x9E3779B1, 0x85EBCA77)
ROW_MIX = 0x7FEB352D
LANE = 2**32


def digest(values: torch.Tensor, first_row: int = 0, first_column: int = 0) -> int:
    """A 64-bit fingerprint of a tensor's bytes, the same on every device: two sums modulo 2**32, side by side.

    Rows run along every dimension but the last (a vector is a column); elements of 8 bytes count as two columns.
    With v_rc an element's bits as a signed integer, sum k (k = 0 the low one) is that of v_rc * a(c) * b_k(r), every
    a and b odd. Any single changed element changes both sums; and they are bilinear: parts, each with its own first
    row and column, add up to the whole in any order (`add_digests`).
    """
    bits = as_integers(as_matrix(values)).to(torch.int64)
    rows = (bits * column_weights(first_column, bits.shape[1], bits.device)).sum(dim=1) % LANE
    return sum(
        int((rows * row_weights(first_row, rows.numel(), rows.device, seed) % LANE).sum()) % LANE << 32 * k
        for k, seed in enumerate(ROW_SEEDS)
    )


def add_digests(*digests: int, weights: Iterable[int] | None = None) -> int:
    """The sum of digests, lane by lane, each times its weight (1 if none are given)."""
    pairs = list(zip(digests, weights or (1,) * len(digests), strict=True))
    low, high = (sum((one >> shift) % LANE * weight for one, weight in pairs) % LANE for shift in (0, 32))
    return low + (high << 32)


def column_weights(first: int, count: int, device: torch.device) -> torch.Tensor:
    """a(c) = 1 + c * COLUMN_STEP modulo 2**32, as int64 in [0, 2**32)."""
    return (torch.arange(first, first + count, dtype=torch.int64, device=device) * COLUMN_STEP + 1) % LANE


def row_weights(first: int, count: int, device: torch.device, seed: int) -> torch.Tensor:
    """b(r) of consecutive rows, see `weights_of_rows`."""
    return weights_of_rows(torch.arange(first, first + count, dtype=torch.int64, device=device), seed)


def weights_of_rows(rows: torch.Tensor, seed: int) -> torch.Tensor:
    """b(r): r times an odd seed, its halves mixed, made odd; as int64 in [0, 2**32)."""
    product = rows % LANE * seed % LANE
    return (product ^ product >> 16) * ROW_MIX % LANE | 1


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Rows along every dimension but the last; a vector is a column."""
    tensor = tensor.detach()
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])


def last_dimension(tensor: torch.Tensor) -> int:
    """The length of the rows of `as_matrix`."""
    return tensor.shape[-1] if tensor.dim() > 1 else 1


def as_integers(matrix: torch.Tensor) -> torch.Tensor:
    """The elements' bits as signed integers of the same width; 8 bytes as two integers of 4."""
    if matrix.element_size() == 8:
        matrix = matrix.clone(memory_format=torch.contiguous_format)
    return matrix.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}[matrix.element_size()])
