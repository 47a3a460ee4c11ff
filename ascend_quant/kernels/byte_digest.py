"""Checksums computed with int8 matrix products, for devices with a fast matrix unit but slow 64-bit integers.

The digest is a sum over rows and bytes of signed bytes times column weights times row weights. The weights are split
into signed base-256 digits. A first product gives each row's sums over its bytes (`of_rows`); a second one, of the
signed digits of these sums, gives the sums over the rows (`over_rows`). Both are exact in int32, and linear: the host
adds the results of the second product modulo the digest's prime (`put_together`).

The signed digits of a sum are its bytes after 0x808080 is added and the highest bits of the three lower bytes are
flipped.
"""

from collections.abc import Callable, Iterator
from functools import lru_cache

import numpy as np
import torch

from ascend_quant import oracle

DIGITS = 6  # base-256 digits of a byte's weight: four, one for the second byte of a column, one for the carry
BYTES = 4 * DIGITS  # bytes of a row's sums
ROW_DIGITS = 8  # base-256 digits of a row's weight
WIDTH = 16  # columns of the second factor; fewer are needed, but matrix units prefer multiples of 16
MOST = 65535  # terms per sum: the largest last dimension of npu_quant_matmul; 65535 * 2**14 < 2**30, so int32 is exact
LOW = 0x808080

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # int8 (N, B) x int8 (B, WIDTH) -> int32 (N, WIDTH)


def of_rows(
    values_NK: torch.Tensor, product: Product, scale_N: torch.Tensor | None = None, first_column: int = 0
) -> Iterator[torch.Tensor]:
    """Return int8 (N, BYTES): the digits of each row's sums, for each run of at most MOST of its bytes.

    Args:
        scale_N: float32; included 3 times in the digest of the rows.
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
    """Return int32 (tensors, BYTES, WIDTH), which `put_together` turns into digests; many rows are split into parts.

    Args:
        bytes_NB: from `of_rows`; several tensors of N rows each are concatenated along the rows.
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
    """Return the digests (T), below the prime, from sums of `over_rows` on the CPU."""
    values = sums_TBW.numpy().astype(np.int64)
    powers = np.zeros((len(values), DIGITS + 3 + ROW_DIGITS - 1), dtype=np.int64)  # indexed by the exponent of 256
    for number in range(BYTES):
        exponent = number // 4 + number % 4
        powers[:, exponent : exponent + ROW_DIGITS] += values[:, number, :ROW_DIGITS]
    return [sum(n << 8 * e for e, n in enumerate(row)) % oracle.PRIME for row in powers.tolist()]


def row_digits(rows: torch.Tensor) -> torch.Tensor:
    """Return int8 (N, WIDTH) on the host: the digits of b(r) for rows with these int64 indices."""
    return _digits_of(oracle.weights_of_rows(rows), ROW_DIGITS)


def _summed(bytes_NB: torch.Tensor, first: int, product: Product) -> torch.Tensor:
    """Return int32 (N, DIGITS): each row's weighted byte sum, as digits of powers of 256."""
    digits_BW = _byte_digits(first, bytes_NB.shape[1], bytes_NB.device)
    return product(bytes_NB.contiguous(), digits_BW)[:, :DIGITS]


@lru_cache(maxsize=64)
def _byte_digits(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return int8 (count, WIDTH): digits of the weights of a row's bytes from index `first` on."""
    return _digits_of(oracle.byte_weights(first, count), DIGITS).to(device)


@lru_cache(maxsize=8)
def _scale_digits(device: torch.device) -> torch.Tensor:
    """Return int8 (4, WIDTH): digits of the weights of a float32 scale's bytes, 3 times those of a row's bytes."""
    return _digits_of(3 * oracle.byte_weights(0, 4), DIGITS).to(device)


def _digits_of(numbers: torch.Tensor, count: int) -> torch.Tensor:
    """Return int8 (N, WIDTH): signed base-256 digits, least significant first, padded with zeros."""
    digits = torch.zeros(len(numbers), WIDTH, dtype=torch.int8, device="cpu")
    for digit in range(count):
        low = (numbers + 128) % 256 - 128
        digits[:, digit] = low.to(torch.int8)
        numbers = (numbers - low) // 256
    return digits
