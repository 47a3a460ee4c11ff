"""Checksums computed with int8 matrix products, for devices with a fast matrix unit but slow 64-bit integers.

The digest is a sum over rows and bytes of signed bytes times column weights times row weights. The weights fall into
signed digits to the base 256. A first product gives each row's sums over its bytes (`of_rows`), a second one, of these
sums' own signed digits, the sums over the rows (`over_rows`). All of it is exact in int32, and linear: what the second
product gives is added up modulo the digest's prime on the host (`put_together`).

A sum's signed digits are its bytes once 0x808080 is added and the three lower bytes' highest bits are turned over.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch

from ascend_quant import oracle

DIGITS = 6  # of a byte's weight: four, one for the second byte of a column, one that is carried
BYTES = 4 * DIGITS  # of a row's sums
ROW_DIGITS = 8  # of a row's weight
WIDTH = 16  # columns of a second factor; fewer are needed, but matrix units like multiples
MOST = 65535  # of what is summed over in one product: an npu_quant_matmul's last dimension; 65535 * 2**14 < 2**30
LOW = 0x808080

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # int8 (N, B) x int8 (B, WIDTH) -> int32 (N, WIDTH)


def of_rows(
    values_NK: torch.Tensor, product: Product, scale_N: torch.Tensor | None = None, first_column: int = 0
) -> Iterator[torch.Tensor]:
    """int8 (N, BYTES): the digits of each row's sums, for each stretch of at most MOST of its bytes.

    Args:
        scale_N: float32, digested 3 times with the rows.
    """
    bytes_NB, first = oracle.as_bytes(values_NK), first_column * values_NK.element_size()
    for start in range(0, bytes_NB.shape[1], MOST):
        sum_ND = _summed(bytes_NB[:, start : start + MOST], first + start, product)
        if scale_N is not None and start == 0:
            of_scale_NW = product(oracle.as_bytes(scale_N.unsqueeze(1)), _scale_digits(values_NK.device))
            sum_ND = torch.add(sum_ND, of_scale_NW[:, :DIGITS]).add_(LOW)
        else:
            sum_ND = sum_ND + LOW
        yield sum_ND.bitwise_xor_(LOW).view(torch.int8)


def over_rows(
    bytes_NB: torch.Tensor, row_digits_NW: torch.Tensor, product: Product, tensors: int = 1
) -> Iterator[torch.Tensor]:
    """int32 (tensors, BYTES, WIDTH): what `put_together` makes numbers of; in parts where there are many rows.

    Args:
        bytes_NB: of `of_rows`; of tensors of N rows each, one below the other, if they are several.
        row_digits_NW: see `row_digits`.
    """
    rows = len(row_digits_NW)
    for start in range(0, rows, MOST):
        digits_NW = row_digits_NW if rows <= MOST else row_digits_NW[start : start + MOST]
        part_TNB = bytes_NB.view(tensors, rows, BYTES)
        part_TNB = part_TNB if rows <= MOST else part_TNB[:, start : start + MOST]
        turned = part_TNB.transpose(1, 2).contiguous().view(tensors * BYTES, len(digits_NW))
        yield product(turned, digits_NW).view(tensors, BYTES, WIDTH)


def put_together(sums_TBW: torch.Tensor) -> list[int]:
    """The digests below the prime that sums of `over_rows`, on the CPU, stand for: one for each of T."""
    values = sums_TBW.numpy().astype(np.int64)
    powers = np.zeros((len(values), DIGITS + 3 + ROW_DIGITS - 1), dtype=np.int64)  # by their exponent of 256
    for number in range(BYTES):
        exponent = number // 4 + number % 4
        powers[:, exponent : exponent + ROW_DIGITS] += values[:, number, :ROW_DIGITS]
    return [sum(n << 8 * e for e, n in enumerate(row)) % oracle.PRIME for row in powers.tolist()]


def row_digits(rows: torch.Tensor) -> torch.Tensor:
    """int8 (N, WIDTH) on the host: the digits of b(r), for rows by their int64 numbers."""
    return _digits_of(oracle.weights_of_rows(rows), ROW_DIGITS)


def _summed(bytes_NB: torch.Tensor, first: int, product: Product) -> torch.Tensor:
    """int32 (N, DIGITS): the sum over the bytes times their weights, as digits times powers of 256."""
    digits_BW = _byte_digits(first, bytes_NB.shape[1], bytes_NB.device)
    return product(bytes_NB.contiguous(), digits_BW)[:, :DIGITS]


@lru_cache(maxsize=64)
def _byte_digits(first: int, count: int, device: torch.device) -> torch.Tensor:
    """int8 (count, WIDTH): digits of the weights of bytes number `first` and following of a row."""
    return _digits_of(oracle.byte_weights(first, count), DIGITS).to(device)


@lru_cache(maxsize=8)
def _scale_digits(device: torch.device) -> torch.Tensor:
    """int8 (4, WIDTH): digits of the weights of a float32 scale's bytes, which are 3 times those of a row's bytes."""
    return _digits_of(3 * oracle.byte_weights(0, 4), DIGITS).to(device)


def _digits_of(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """int8 (N, WIDTH): so many signed digits to the base 256, the lowest first; then zeros."""
    digits = torch.zeros(len(numbers), WIDTH, dtype=torch.int8, device="cpu")
    for digit in range(count):
        low = (numbers + 128) % 256 - 128
        digits[:, digit] = low.to(torch.int8)
        numbers = (numbers - low) // 256
    return digits
