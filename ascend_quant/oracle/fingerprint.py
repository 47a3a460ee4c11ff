"""Checksums (digests) of tensors' bytes, the same on every device, whose parts add up to the whole."""

from collections.abc import Iterable
from functools import lru_cache
from operator import mul
from typing import cast

import torch

PRIME = 2**61 - 1
LANE = 2**32
MIXERS = (0x7FEB352D, 0x846CA68B)  # odd, so that each step of `mixed` is invertible
COLUMN_SEED, ROW_SEED, HIGH_SEED = 0x3C6EF372, 0x9E3779B1, 0x85EBCA77
SPAN = 128  # number of mixed column weights; the weights of each following SPAN are multiplied by SPAN_FACTOR
SPAN_FACTOR = 0x2C9277B5  # 5 modulo 8: its powers have period 2**30
HIGH_BITS = 29  # bits of a row's weight above the low 32
MOST = 1 << 16  # two-byte columns whose weighted sum is exact in 64 bits: 2**15.01 * 2**31 * 2**16 < 2**63


def digest(values: torch.Tensor, first_row: int = 0, first_column: int = 0) -> int:
    """Return a checksum of a tensor's bytes below PRIME, the same on every device.

    Rows run along every dimension but the last (a vector is a column). With v_rj byte j of row r as a signed number,
    it is the sum of v_rj * 256**(j % 2) * a(j // 2) * b(r), the row's part exact, the whole modulo PRIME: a column
    weight is a pseudo-random signed integer of 32 bits, a row weight one below 2**61. It is bilinear: parts, each with
    its own first row and column, add up to the whole in any order (`add_digests`).

    It misses differences whose weighted sum is 0. For any fixed difference of two tensors, randomly drawn weights would
    miss it with a probability of at most 2**-32 + 2**-60: 2**-32 that the column weights cancel each row's difference,
    2**-60 that the row weights cancel the rest. A changed element of one or two bytes is always detected; random bytes
    have an equal digest with probability 2**-61. The weights are fixed and public, so the digest detects faults, but is
    no defence against an adversary, who can compute a collision.
    """
    matrix = as_bytes(as_matrix(values))
    first = first_column * values.element_size()
    weights = _numbers(weights_of_rows(torch.arange(first_row, first_row + len(matrix), device="cpu")))
    total = 0
    for start in range(0, matrix.shape[1], MOST):
        part = matrix[:, start : start + MOST].to(torch.int64)
        sums = (part * byte_weights(first + start, part.shape[1]).to(part.device)).sum(1)
        total += sum(map(mul, _numbers(sums), weights))
    return total % PRIME


def _numbers(integers: torch.Tensor) -> list[int]:
    return cast(list[int], integers.tolist())  # torch annotates tolist() as a list of Any


def add_digests(*digests: int, weights: Iterable[int] | None = None) -> int:
    """Return the sum of digests, each times its weight (1 by default)."""
    return sum(map(mul, digests, weights or (1,) * len(digests))) % PRIME


def byte_weights(first: int, count: int) -> torch.Tensor:
    """Return the digest's weights of consecutive bytes of a row from index `first` on, int64 on the CPU."""
    of_pairs = column_weights(first // 2, (first + count + 1) // 2 - first // 2)
    return torch.stack([of_pairs, of_pairs * 256], dim=1).flatten()[first % 2 :][:count]


@lru_cache(maxsize=256)
def column_weights(first: int, count: int) -> torch.Tensor:
    """Return a(k) for consecutive two-byte columns, int64 on the CPU in [-2**31, 2**31).

    Modulo 2**32, a(k) is mixed(k % SPAN + COLUMN_SEED) * SPAN_FACTOR**(k // SPAN).
    """
    spans = range(first // SPAN, (first + count + SPAN - 1) // SPAN)
    powers = torch.tensor([pow(SPAN_FACTOR, span, LANE) for span in spans], dtype=torch.int64, device="cpu")
    span = mixed(torch.arange(SPAN, device="cpu") + COLUMN_SEED)
    unsigned = (powers.unsqueeze(1) * span % LANE).flatten()[first % SPAN :][:count]
    return (unsigned + LANE // 2) % LANE - LANE // 2


def weights_of_rows(rows: torch.Tensor) -> torch.Tensor:
    """Return b(r) for rows by their int64 indexes, int64 in [0, 2**61): two mixed numbers concatenated."""
    low = mixed(rows + ROW_SEED)
    return low + (mixed(low + HIGH_SEED) % 2**HIGH_BITS << 32)


def mixed(numbers: torch.Tensor) -> torch.Tensor:
    """Apply a permutation of the integers modulo 2**32 in which every bit depends on every other; returns int64."""
    first, second = MIXERS
    numbers = numbers % LANE
    numbers = (numbers ^ numbers >> 16) * first % LANE
    numbers = (numbers ^ numbers >> 15) * second % LANE
    return numbers ^ numbers >> 16


def as_matrix(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor as a matrix, with rows along every dimension but the last; a vector becomes a column."""
    tensor = tensor.detach()
    if tensor.dim() < 2:
        return tensor.reshape(-1, 1)
    return tensor if tensor.dim() == 2 else tensor.reshape(-1, tensor.shape[-1])


def as_bytes(matrix: torch.Tensor) -> torch.Tensor:
    """View a matrix as the bytes of each row, int8 (N, bytes); copies if they are not contiguous."""
    if matrix.stride(1) != 1:
        matrix = matrix.clone(memory_format=torch.contiguous_format)
    return matrix.view(torch.int8)


def as_integers(matrix: torch.Tensor) -> torch.Tensor:
    """Return the elements' bits as signed integers of the same width; 8 bytes as two 4-byte integers."""
    if matrix.element_size() == 8:
        matrix = matrix.clone(memory_format=torch.contiguous_format)
    return matrix.view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}[matrix.element_size()])
