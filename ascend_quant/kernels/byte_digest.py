"""The oracle's digest by int8 matrix products, for devices whose matrix unit is fast and whose 64-bit integers are not.

The digest is a sum over rows and columns of v(r, c) * a(c) * b(r) modulo 2**32. Every factor falls into bytes: v into
signed ones, with a correction where a lower byte is negative, a and b times a power of 256 into four signed digits. A
first product gives each row's sums over its columns, a second one, of these sums' bytes, the sums over the rows. All
of it is exact in int32, and linear: what the second product gives is added up, and put together on the host.
"""

from collections.abc import Callable
from functools import lru_cache

import torch

from ascend_quant import oracle

DIGITS = 4
WIDTH = 16  # columns of a second factor; fewer are needed, but matrix units like multiples
MOST = 65535  # of what is summed over in one product: an npu_quant_matmul's last dimension; 65535 * 2**14 < 2**30

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # int8 (N, B) x int8 (B, WIDTH) -> int32 (N, WIDTH)
SHAPE = (2, DIGITS * 4, WIDTH)  # of the sums: of bytes, and of the corrections


def sums(
    values_NK: torch.Tensor,
    scale_N: torch.Tensor | None,
    row_digits_NW: torch.Tensor,
    product: Product,
    first_column: int = 0,
) -> torch.Tensor:
    """int64 SHAPE: what `lanes` puts together.

    Args:
        scale_N: float32, digested 3 times with the rows.
        row_digits_NW: see `row_digits`.
    """
    size = values_NK.element_size()
    total = torch.zeros(SHAPE, dtype=torch.int64, device=values_NK.device)
    for start in range(0, values_NK.shape[1], MOST // size):
        part_NK = values_NK[:, start : start + MOST // size].contiguous()
        sum_ND = _summed(part_NK, first_column + start, product)
        if scale_N is not None and start == 0:
            sum_ND += 3 * _summed(scale_N.unsqueeze(1), 0, product)  # a(0) is 1
        for row in range(0, len(sum_ND), MOST):
            bytes_BN = sum_ND[row : row + MOST].contiguous().view(torch.int8).t().contiguous()
            digits_NW = row_digits_NW[row : row + MOST]
            total[0] += product(bytes_BN, digits_NW)
            total[1] += product((bytes_BN < 0).to(torch.int8), digits_NW)
    return total


def lanes(total: torch.Tensor) -> tuple[int, int]:
    """Both sums of the digest below 2**32; waits for the device."""
    low, high = 0, 0
    for lacks, matrix in enumerate(total.tolist()):
        for number, row in enumerate(matrix):
            digit, byte = divmod(number, 4)
            if byte + lacks > 3:  # the highest byte has the sign: nothing lacks
                continue
            for k in range(DIGITS):
                power = 256 ** (digit + byte + lacks + k)
                low += row[k] * power
                high += row[DIGITS + k] * power
    return low % oracle.LANE, high % oracle.LANE


def row_digits(rows: torch.Tensor) -> torch.Tensor:
    """int8 (N, WIDTH) on the host: the digits of b(r) of both sums, for rows by their int64 numbers."""
    both = [_digits_of(oracle.weights_of_rows(rows, seed))[:, :DIGITS] for seed in oracle.ROW_SEEDS]
    return torch.cat([*both, torch.zeros(len(rows), WIDTH - 2 * DIGITS, dtype=torch.int8, device="cpu")], dim=1)


def _summed(values_NK: torch.Tensor, first_column: int, product: Product) -> torch.Tensor:
    """int32 (N, DIGITS): the sum over the columns of v(c) * a(first_column + c), as digits times powers of 256."""
    values_NK = oracle.as_integers(values_NK)
    size, device = values_NK.element_size(), values_NK.device
    bytes_NB = values_NK.view(torch.int8).view(len(values_NK), -1)
    found_NW = product(bytes_NB, _column_digits(first_column, values_NK.shape[1], size, 0, device))
    if size > 1:
        negative_NB = (bytes_NB < 0).to(torch.int8)
        found_NW = found_NW + product(negative_NB, _column_digits(first_column, values_NK.shape[1], size, 1, device))
    return found_NW[:, :DIGITS]


@lru_cache(maxsize=64)
def _column_digits(first: int, columns: int, size: int, lacks: int, device: torch.device) -> torch.Tensor:
    """int8 (columns * size, WIDTH): digits of a(c) * 256**i for byte i of column c.

    Args:
        lacks: 1 for what a negative byte i lacks, a(c) * 256**(i + 1), nothing for the highest byte.
    """
    powers = torch.tensor([256 ** (i + lacks) * (i + lacks < size) for i in range(size)], device="cpu")
    weights = oracle.column_weights(first, columns, torch.device("cpu"))
    return _digits_of((weights[:, None] * powers % oracle.LANE).flatten()).to(device)


def _digits_of(numbers: torch.Tensor) -> torch.Tensor:
    """int8 (N, WIDTH): signed digits to the base 256 of numbers modulo 2**32, the lowest first."""
    left = numbers % oracle.LANE
    digits = torch.zeros(len(left), WIDTH, dtype=torch.int8, device="cpu")
    for digit in range(DIGITS):
        low = (left + 128) % 256 - 128
        digits[:, digit] = low.to(torch.int8)
        left = (left - low) // 256
    return digits
