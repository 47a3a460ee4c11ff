"""Grouping of a refit's writes into launches: writes that differ only in addresses, strides and rows share a launch.

`line_of` turns a write into a line of its group's table; `launches_of` turns the table into launches.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels.counters import SAMPLE, Counters
from ascend_quant.kernels.cuda.refit import triton_entries as entries
from ascend_quant.kernels.cuda.refit import triton_rows as rows_kernels
from ascend_quant.kernels.cuda.refit import triton_shared_scales as shared_scales_kernels
from ascend_quant.kernels.cuda.refit import triton_tiles as tile_kernels
from ascend_quant.kernels.cuda.refit.launches import Launch
from ascend_quant.kernels.int4_layouts import TILE_N
from ascend_quant.kernels.writes import Fp8Write, Int4Write, RowWrite

# columns of a launch table
SOURCE, ROWS_OF, TARGET, TARGET_STRIDE, SCALE, BAD, WHOLE = (
    getattr(entries, name).value for name in ("SOURCE", "ROWS_OF", "TARGET", "TARGET_STRIDE", "SCALE", "BAD", "WHOLE")
)
LONGEST_ROW = 65536
TILINGS = {  # by maximum row length: elements per step, repetitions, warps, registers
    1024: (256, 8, 1, 64),
    2560: (256, 4, 1, 96),
    8192: (512, 4, 2, 80),
    32768: (2048, 4, 8, 80),
    LONGEST_ROW: (4096, 2, 16, 64),
}
LEAST_REGISTERS = {"int8_float32": 104, "int8_static": 104, "copy": 96}  # by kind: a division or a wide sum needs more
TILES = (("num_warps", 8),)  # options of the int4 kernel
TYPES = {
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
    torch.float32: tl.float32,
    torch.int32: tl.int32,
    torch.int16: tl.int16,
    torch.int8: tl.int8,
    torch.float8_e4m3fn: tl.int8,  # stored and digested as bytes
}


class Group(NamedTuple):
    """The compile-time constants that all writes of one launch share."""

    kind: str
    source: torch.dtype
    target: torch.dtype
    length: int
    whole: int
    aligned: bool
    shared: int = 0  # rows of a tensor, or elements of a group, that share one scale


def line_of(write: RowWrite, dtype: torch.dtype, aligned: bool) -> tuple[Group, tuple[int, ...]]:
    """Return a write's group and its line in the group's table, which has offsets in place of source addresses.

    Args:
        dtype: dtype of the source tensor; `aligned`: whether the tensor is aligned to 16 bytes.

    Raises:
        ValueError: rows longer than 65,536 elements, or blocks that are split between writes.
    """
    target, scale, kind, size = write.target, write.scale, write.kind, dtype.itemsize
    rows, length = target.shape
    if length > LONGEST_ROW:
        raise ValueError(f"rows of {length} elements: the CUDA kernels support at most {LONGEST_ROW}")
    if kind == "fp8_blocks":
        _check_blocks(write)
    whole, whole_length, tensor_rows = *(write.whole or (0, 0)), 0
    if kind == "fp8_tensor":
        whole, whole_length = write.whole or (write.offset, length)
        before, tensor_rows = write.tensor_rows
        whole -= before * write.row_stride
    source = (write.offset * size, whole * size, write.row_stride * size)
    sixteens = (*source, whole_length, target.data_ptr(), target.stride(0) * target.element_size(), length)
    aligned = aligned and write.column_stride == 1 and not any(number % 16 for number in sixteens)
    scale_at = 0 if scale is None else scale.data_ptr()
    read = (write.offset * size, write.row_stride, write.column_stride, rows)
    line = (*read, target.data_ptr(), target.stride(0), scale_at, 0, write.first_row, write.weight, whole * size, 0)
    if isinstance(write, Int4Write):
        words, last = write.layout.tensor, (scale_at, 0, write.first_row, write.weight, 0, 0)
        aligned = aligned and write.layout.rows % 16 == 0
        line = (*read, words.data_ptr(), write.layout.rows, *last)
        return Group(kind, dtype, words.dtype, length, 0, aligned, write.group), line
    return Group(kind, dtype, target.dtype, length, whole_length, aligned, tensor_rows), line


def _check_blocks(write: Fp8Write) -> None:
    first_block, within = divmod(write.first_row, oracle.BLOCK)
    if within or write.first_block not in (None, first_block):
        raise ValueError(f"blocks of {oracle.BLOCK} rows cannot start at row {write.first_row}")


def launches_of(group: Group, table: np.ndarray, receipt: bool) -> Iterator[Launch]:
    """Yield the launches of a group, in the order in which they start.

    Raises:
        ValueError: the dtype has no kernel.
    """
    if group.source not in TYPES or group.target not in TYPES:
        raise ValueError(f"no CUDA kernel converts {group.source} to {group.target}")
    rows = table[:, ROWS_OF]
    if not rows.any():
        return
    source, target = TYPES[group.source], TYPES[group.target]
    counting = (receipt, Counters.SPREAD, SAMPLE)
    if group.kind == "fp8_blocks":
        blocks = -(-rows // oracle.BLOCK) * -(-group.length // oracle.BLOCK)
        constants = (source, group.length, group.aligned, *counting)
        yield Launch(shared_scales_kernels.write_blocks, table, blocks, constants, (("num_warps", 8),))
        return
    if group.kind == "int4":
        tiles = rows // TILE_N * -(-group.length // tile_kernels.COLUMNS.value)
        constants = (source, group.length, group.shared, group.aligned, receipt, Counters.SPREAD)
        yield Launch(tile_kernels.write_tiles, table, tiles, constants, TILES)
        return
    if group.kind == "fp8_tensor":
        yield from _scale_launches(group, table, source)
    width, at_once, repeat, options = tiling(group.length, group.kind)
    whole = 0 if group.kind == "fp8_tensor" else group.whole
    shape = (group.length, whole, width, at_once, repeat, group.aligned)
    constants = (group.kind, source, target, *shape, *counting)
    yield Launch(rows_kernels.write_rows, table, -(-rows // (at_once * repeat)), constants, options)


def _scale_launches(group: Group, table: np.ndarray, source: tl.dtype) -> Iterator[Launch]:
    """Yield the launches that find each tensor's absmax (fp8_tensor), before the launch that writes."""
    width, at_once, _, options = tiling(group.whole, group.kind)
    table = table.copy()
    table[:, SOURCE], table[:, ROWS_OF] = table[:, WHOLE], group.shared
    one_each = np.ones_like(table[:, ROWS_OF])
    yield Launch(shared_scales_kernels.tops_to_scales, table, one_each, (True,), ())
    constants = (source, group.whole, width, at_once, group.aligned)
    yield Launch(shared_scales_kernels.find_tops, table, -(-table[:, ROWS_OF] // at_once), constants, options)
    yield Launch(shared_scales_kernels.tops_to_scales, table, one_each, (False,), ())


def tiling(length: int, kind: str) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    """Return how a kernel walks rows of `length`: elements per step, rows at a time, repetitions, and Triton's options.

    A row has few warps, and programs have enough registers that few of them run at once, so that rows stay in the L1
    cache between the two reads. Measured on one H200 at lengths of 768, 2048, 3584 and 18,944: each reaches 0.95 of a
    copy's bandwidth.
    """
    if length <= 256:
        step = triton.next_power_of_2(length)
        at_once, repeat, warps, registers = max(1, 2048 // step), 2, 4, 128
    else:
        at_once = 1
        step, repeat, warps, registers = next(found for longest, found in TILINGS.items() if length <= longest)
    registers = max(registers, LEAST_REGISTERS.get(kind, 0))
    return step, at_once, repeat, (("num_warps", warps), ("maxnreg", registers))
