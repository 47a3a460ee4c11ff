"""Writes from host memory: rows are copied to the device in chunks, and written from there."""

from collections.abc import Iterator
from dataclasses import replace

import torch

from ascend_quant import oracle
from ascend_quant.kernels.writes import Fp8Write, Job, PrequantizedWrite, RowWrite

UPLOAD = 32 << 20  # bytes of host memory that are copied at a time


def uploaded(write: RowWrite, source: torch.Tensor, slot: int) -> Iterator[Job]:
    """Yield jobs for a write from host memory, a chunk of rows each (the whole tensor if it has a single scale)."""
    if write.kind == "fp8_tensor":
        yield _whole_tensor(write, source, slot)
        return
    matrix, device = write.matrix(source), write.target.device
    whole = matrix if write.whole is None else write.whole_rows(source)
    if isinstance(write, PrequantizedWrite):
        whole = write.rows_with_scale(source)
    per_scale = oracle.BLOCK if write.kind == "fp8_blocks" else 1
    step = max(1, UPLOAD // max(1, whole.shape[1] * whole.element_size()) // per_scale) * per_scale
    for first in range(0, write.rows, step):
        rows = whole[first : first + step].to(device)
        yield Job.of(_of_rows(write, rows, first, per_scale), rows, slot)


def _of_rows(write: RowWrite, rows: torch.Tensor, first: int, per_scale: int) -> RowWrite:
    """Return the part of a write, from row `first` on, whose source is this chunk of rows."""
    here = slice(first, first + len(rows))
    more = {"target": write.target[here], "first_row": write.first_row + first}
    if write.scale is not None:
        more["scale"] = write.scale[first // per_scale : -(-here.stop // per_scale)]
    if write.kind == "int8_static":
        more["static_scale"] = write.static_scale[here]
    if write.kind == "fp8_blocks" and write.first_block is not None:
        more["first_block"] = write.first_block + first // per_scale
    return replace(write, **more, **_read_from(write, rows, 0))


def _whole_tensor(write: Fp8Write, source: torch.Tensor, slot: int) -> Job:
    tensor = write.whole_tensor(source).to(write.target.device)
    before, _ = write.tensor_rows
    begin = before * tensor.stride(0)
    read = _read_from(write, tensor, begin) | {"whole": (begin, tensor.shape[1])}
    return Job.of(replace(write, **read), tensor, slot)


def _read_from(write: RowWrite, rows: torch.Tensor, offset: int) -> dict[str, object]:
    """Return the fields that locate the matrix in `rows`, whose own or complete rows begin at `offset`."""
    strides = {"row_stride": rows.stride(0), "column_stride": rows.stride(1)}
    if write.whole is None:
        return {"offset": offset, **strides}
    whole_offset, length = write.whole
    behind = (write.offset - whole_offset) // write.column_stride
    return {"offset": offset + behind * rows.stride(1), "whole": (offset, length), **strides}
