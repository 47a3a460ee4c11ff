"""Checksums of tensors on CUDA devices (Triton): thousands in a few launches, without host synchronization."""

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import torch

from ascend_quant import oracle
from ascend_quant.kernels import modulo
from ascend_quant.kernels.chunks import pairs_of, sum_of
from ascend_quant.kernels.cuda.refit import triton_digest as digest_kernels
from ascend_quant.kernels.cuda.refit.launches import Launch, join, start
from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.oracle.fingerprint import MOST, SPAN, SPAN_FACTOR

AT_ONCE = {16: 128, 128: 16, 512: 4}  # rows per tile, by the byte pairs of a row that are read at a time


def digests(
    tensors: Sequence[torch.Tensor | WeightLayout], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """Return `oracle.digest` of each tensor as int64, in at most three launches (six with unaligned ones)."""
    device = _device_of(tensors[0]) if tensors else None
    sums = torch.zeros(len(tensors), 2, dtype=torch.int64, device=device)
    tables: dict[tuple[int, bool], list[tuple[int, ...]]] = defaultdict(list)
    sums_at = sums.data_ptr()
    kept = []  # copies among them must live until the launch
    for i, tensor in enumerate(tensors):
        first_row, first_column = first_rows[i] if first_rows else 0, first_columns[i] if first_columns else 0
        if 0 in tensor.shape:
            continue
        if not first_column and (line := _line_of_whole(tensor, first_row, sums_at + 16 * i)) is not None:
            address, pairs = line[digest_kernels.SOURCE.value], line[digest_kernels.PAIRS.value]
            tables[_width(pairs), address % 16 == 0 and pairs % 16 == 0].append(line)
            continue
        if not isinstance(tensor, torch.Tensor):
            sums[i] += modulo.halves(sum_of(tensor, first_row, first_column))
            continue
        pairs, first = pairs_of(oracle.as_matrix(tensor), first_column)
        kept.append(pairs)
        for begin in range(0, pairs.shape[1], MOST):
            part = pairs[:, begin : begin + MOST]
            address, (rows, columns) = part.data_ptr(), part.shape
            span, offset = divmod(first + begin, SPAN)
            position = first_row, offset, pow(SPAN_FACTOR, span, 2**32), 0
            line = (address, *part.stride(), rows, columns, sums_at + 16 * i, *position)
            tables[_width(columns), _aligned(part, address)].append(line)
    start(*join([_launch(*key, np.array(lines, dtype=np.int64)) for key, lines in tables.items()]), sums)
    return modulo.joined(sums)


def _line_of_whole(tensor: torch.Tensor | WeightLayout, first_row: int, target: int) -> tuple[int, ...] | None:
    """Return the table line of a contiguous tensor, as most are; None for others.

    A mixture-of-experts model has tens of thousands of tensors. No views are created here, since they took most of the
    time.
    """
    if not isinstance(tensor, torch.Tensor) or tensor.dim() < 2 or not tensor.is_contiguous():
        return None
    last, address = tensor.shape[-1], tensor.data_ptr()
    pairs, odd = divmod(last * tensor.element_size(), 2)
    if odd or address % 2 or pairs > MOST:
        return None
    return address, pairs, 1, tensor.numel() // last, pairs, target, first_row, 0, 1, 0


def read_digests(found: Sequence[torch.Tensor]) -> list[int]:
    """Read the results of calls of `digests` in one copy to the host, which waits for the device."""
    return torch.cat(list(found)).tolist()


def launches_of_nothing(scratch: torch.Tensor) -> list[Launch]:
    """Return launches of every digest kernel with zero rows, which compile it; stores go to scratch memory."""
    nothing = np.zeros((1, digest_kernels.DIGEST_FIELDS), dtype=np.int64)
    nothing[0, [digest_kernels.SOURCE.value, digest_kernels.TARGET.value]] = scratch.data_ptr()
    return [_launch(width, aligned, nothing) for width in AT_ONCE for aligned in (True, False)]


def _width(columns: int) -> int:
    """Return how many pairs a kernel reads at a time from rows of `columns` pairs."""
    return next((width for width in AT_ONCE if columns <= width), max(AT_ONCE))


def _launch(width: int, aligned: bool, table: np.ndarray) -> Launch:
    at_once = AT_ONCE[width]
    programs = -(-table[:, digest_kernels.ROWS_OF.value] // at_once)
    return Launch(digest_kernels.digest_rows, table, programs, (width, at_once, aligned), (("num_warps", 4),))


def _device_of(tensor: torch.Tensor | WeightLayout) -> torch.device:
    return (tensor if isinstance(tensor, torch.Tensor) else tensor.tensor).device


def _aligned(matrix: torch.Tensor, address: int) -> bool:
    row = matrix.stride(0) * matrix.element_size()
    return matrix.stride(1) == 1 and address % 16 == 0 and row % 16 == 0 and matrix.shape[1] % 16 == 0
