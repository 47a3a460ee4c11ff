"""The oracle's digest by int8 matrix products, for devices whose matrix unit is fast and whose int64 is not.

A row's part of the digest is the sum over its columns of v(c) * a(c) modulo 2**32. Both factors fall into bytes: v into
signed ones, with a correction where a lower byte is negative, a times a power of 256 into four signed digits. So two
products of int8 matrices, exact in int32, give every row's sum.
"""

from collections.abc import Callable
from functools import cache

import torch

from ascend_quant import oracle

DIGITS = 4
WIDTH = 16  # columns of the second factor: 4 digits of a, 4 of one, and padding to what matrix units like
MOST_BYTES = 65535  # of a row in one product: an npu_quant_matmul's last dimension, and sums below 2**31

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # int8 (N, B) x int8 (B, WIDTH) -> int32 (N, WIDTH)


def row_sums(values_NK: torch.Tensor, first_column: int, product: Product) -> torch.Tensor:
    """The sum over c of v(c) * a(first_column + c) of each row, int64 (N) in [0, 2**32)."""
    values_NK = oracle.as_integers(values_NK.contiguous())
    size = values_NK.element_size()
    step = MOST_BYTES // size
    total = torch.zeros(values_NK.shape[0], dtype=torch.int64, device=values_NK.device)
    for start in range(0, values_NK.shape[1], step):
        part_NK = values_NK[:, start : start + step].contiguous()
        total += _part_sums(part_NK, first_column + start, product)
    return total % oracle.LANE


def _part_sums(part_NK: torch.Tensor, first: int, product: Product) -> torch.Tensor:
    """a(first + c) = a(c) + first * COLUMN_STEP, so the plain sums of v carry the columns' offset."""
    rows, columns = part_NK.shape
    size, device = part_NK.element_size(), part_NK.device
    bytes_NB = part_NK.view(torch.int8).view(rows, columns * size)
    found = product(bytes_NB, _weights(columns, size, False, device)).to(torch.int64)
    if size > 1:
        found += product((bytes_NB < 0).to(torch.int8), _weights(columns, size, True, device)).to(torch.int64)
    powers = 256 ** torch.arange(DIGITS, dtype=torch.int64, device=device)
    weighted, plain = ((found[:, at : at + DIGITS] * powers).sum(1) % oracle.LANE for at in (0, DIGITS))
    return weighted + plain * (first * oracle.COLUMN_STEP % oracle.LANE) % oracle.LANE


@cache
def _weights(columns: int, size: int, corrections: bool, device: torch.device) -> torch.Tensor:
    """int8 (columns * size, WIDTH): digits of a(c) * 256**i and of 256**i for byte i of column c.

    Args:
        corrections: of what a negative byte i lacks, 256**(i + 1), nothing for the highest byte, which has the sign.
    """
    powers = [256 ** (i + corrections) if i + 1 < size or not corrections else 0 for i in range(size)]
    powers = torch.tensor(powers, dtype=torch.int64)
    factors = torch.stack([oracle.column_weights(0, columns, torch.device("cpu")), torch.ones(columns).long()])
    wanted_BF = (factors[:, :, None] * powers % oracle.LANE).view(2, -1).T
    digits = torch.zeros(columns * size, WIDTH, dtype=torch.int8)
    for digit in range(DIGITS):
        low_BF = (wanted_BF + 128) % 256 - 128
        digits[:, [digit, DIGITS + digit]] = low_BF.to(torch.int8)
        wanted_BF = (wanted_BF - low_BF) // 256
    return digits.to(device)
