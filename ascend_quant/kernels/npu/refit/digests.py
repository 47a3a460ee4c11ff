"""Checksums on an NPU's matrix unit; the results stay on the device until they are read, in one copy."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

import torch

from ascend_quant import oracle
from ascend_quant.kernels import byte_digest
from ascend_quant.kernels.npu.ops import operator
from ascend_quant.kernels.storage import WeightLayout

ELEMENTS = 6 << 24  # elements that are read at a time; small tensors are concatenated in a copy
LEAST_ROWS, MOST_ROWS = 1 << 16, 1 << 20  # size of the table of row digits, 16 bytes per row


class Sums(NamedTuple):
    """Unread sums of digests, on the device.

    Attributes:
        parts: int32 (T, BYTES, WIDTH) each, on the device.
        owners: for each entry of each part, the index of its digest.
        count: number of digests.
    """

    parts: list[torch.Tensor]
    owners: list[int]
    count: int

    def tolist(self) -> list[int]:
        """Return the digests, below the prime; waits for the device."""
        return read_digests([self])


class Part(NamedTuple):
    """A range of rows of a tensor to digest.

    Attributes:
        rows_NK: the part, as a matrix.
        first_row, first_column: position of the matrix in the whole tensor.
        owner: index of its digest.
    """

    rows_NK: torch.Tensor
    first_row: int
    first_column: int
    owner: int


def digests(
    tensors: Sequence[torch.Tensor | WeightLayout], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> Sums:
    """Compute `oracle.digest` of each tensor asynchronously; `read_digests` reads the results."""
    sums, owners = [], []
    for parts in _alike(_parts(tensors, first_rows, first_columns)):
        for found in _sums(parts):
            sums.append(found)
            owners += [part.owner for part in parts]
    return Sums(sums, owners, len(tensors))


def read_digests(found: Iterable[Sums]) -> list[int]:
    """Return the digests of several calls as one list, in one copy to the host, which waits for the device."""
    found = list(found)
    parts = [part for one in found for part in one.parts]
    numbers = iter(byte_digest.put_together(torch.cat(parts).cpu()) if parts else [])
    totals = []
    for one in found:
        total = [0] * one.count
        for owner in one.owners:
            total[owner] = oracle.add_digests(total[owner], next(numbers))
        totals += total
    return totals


def _parts(tensors: Sequence, first_rows: Sequence[int], first_columns: Sequence[int]) -> Iterator[Part]:
    for i, tensor in enumerate(tensors):
        matrix = tensor if _is_matrix(tensor) else oracle.as_matrix(tensor)
        rows, columns = matrix.shape
        first_row, first_column = first_rows[i] if first_rows else 0, first_columns[i] if first_columns else 0
        step = max(1, ELEMENTS // max(1, columns))
        for start in range(0, rows if columns else 0, step):
            whole = rows <= step and isinstance(tensor, torch.Tensor)
            yield Part(matrix if whole else matrix[start : start + step], first_row + start, first_column, i)


def _is_matrix(tensor: torch.Tensor | WeightLayout) -> bool:
    """Return whether the tensor can be used without a view, which costs as much as a small launch."""
    return not isinstance(tensor, torch.Tensor) or (tensor.dim() == 2 and not tensor.requires_grad)


def _alike(parts: Iterator[Part]) -> Iterator[list[Part]]:
    """Yield parts of equal shape and position, as many at a time as the work space allows."""
    waiting: dict[tuple, list[Part]] = {}
    for part in parts:
        rows = part.rows_NK
        if rows.numel() > ELEMENTS // 2 or len(rows) > byte_digest.MOST or rows.numel() == 0:
            yield [part]
            continue
        key = (rows.shape, rows.dtype, rows.device, *part[1:3])
        group = waiting.setdefault(key, [])
        group.append(part)
        if (len(group) + 1) * rows.numel() > ELEMENTS:
            yield waiting.pop(key)
    yield from waiting.values()


def _sums(parts: list[Part]) -> Iterator[torch.Tensor]:
    first = parts[0]
    rows_NK = first.rows_NK if len(parts) == 1 else torch.cat([part.rows_NK for part in parts])
    digits_NW = row_digits(first.first_row, len(first.rows_NK), rows_NK.device)
    for bytes_NB in byte_digest.of_rows(rows_NK, product, first_column=first.first_column):
        yield from byte_digest.over_rows(bytes_NB, digits_NW, product, len(parts))


def row_digits(first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return `byte_digest.row_digits`, from a table on the device for common row numbers."""
    end = first + count
    if end > MOST_ROWS:
        return byte_digest.row_digits(torch.arange(first, end, device="cpu")).to(device)
    return _row_table(max(LEAST_ROWS, 1 << (end - 1).bit_length()), device)[first:end]


@cache
def _row_table(count: int, device: torch.device) -> torch.Tensor:
    return byte_digest.row_digits(torch.arange(count, device="cpu")).to(device)


def product(x_NB: torch.Tensor, w_BJ: torch.Tensor) -> torch.Tensor:
    """Return the exact int32 product of int8 matrices."""
    if x_NB.device.type == "cpu":  # runs the same arithmetic without an NPU
        return (x_NB.double() @ w_BJ.double()).to(torch.int32)
    return operator("npu_quant_matmul")(x_NB, w_BJ, _one(x_NB.device), output_dtype=torch.int32)


@cache
def _one(device: torch.device) -> torch.Tensor:
    return torch.ones(1, dtype=torch.float32, device=device)
