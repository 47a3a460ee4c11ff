"""CUDA kernels: many matrices a launch, no host synchronisation, everything counted in the same pass (Triton).

A job is cut into groups that differ only in numbers (addresses, strides, rows); a group is one launch. What does not
change from refit to refit is kept with the job's moves. The serving side (matmul, experts) is vLLM's own, see
cuda_serving.py.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels import triton_rows as rows_kernels
from ascend_quant.kernels.cuda_serving import PRODUCT, experts, float32_product, matmul, plain_experts
from ascend_quant.kernels.launches import Head, Launch, join, start
from ascend_quant.kernels.moves import SAMPLE, Counters, Job, Move

__all__ = [
    "PRODUCT",
    "READS_ARE_FREE",
    "Counters",
    "digests",
    "experts",
    "float32_product",
    "matmul",
    "plain_experts",
    "write",
]

READS_ARE_FREE = False  # reading a counter waits for the device

# columns of a launch's table
SOURCE, ROWS_OF, BAD, WHOLE = (
    column.value for column in (rows_kernels.SOURCE, rows_kernels.ROWS_OF, rows_kernels.BAD, rows_kernels.WHOLE)
)
LONGEST_ROW = 65536
TILINGS = {  # for rows of up to so many elements: step, how often, warps, registers
    1024: (256, 8, 1, 64),
    2560: (256, 4, 1, 96),
    8192: (512, 4, 2, 80),
    32768: (2048, 4, 8, 80),
    LONGEST_ROW: (4096, 2, 16, 64),
}
DIVIDING, DIVIDING_REGISTERS = ("int8_exact", "int8_given"), 112  # kinds, and how many registers they need at least
UPLOAD = 32 << 20  # bytes of host memory that travel at a time
PATTERNS = 4  # ways in which a job's tensors may lie, that are kept
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
    """What one launch has in common."""

    kind: str
    source: torch.dtype
    target: torch.dtype
    length: int
    whole: int
    aligned: bool


class Ready(NamedTuple):
    """A job's launches but for what changes from refit to refit: the sources' addresses and their counters.

    Attributes:
        flat: the launches' tables, with offsets in place of addresses.
        heads: the launches.
        lines, takes: where each line of the tables begins, and which of the job's tensors it reads.
        uploads: the moves whose source is in host memory, and which of the tensors that is.
        given: the moves with given scales, which the kernels find in their resident places.
    """

    flat: np.ndarray
    heads: list[Head]
    lines: np.ndarray
    takes: np.ndarray
    uploads: list[tuple[Move, int]]
    given: list[Move]


def write(batch: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out a batch of moves; asynchronous.

    Args:
        batch: the sources must stay as they are until the current stream has passed this point.
        receipt: whether changed codes and the digest are counted; non-finite elements always are.

    Raises:
        ValueError: rows longer than 65,536 elements, or a dtype without a kernel.
    """
    blocks = np.array([block.data_ptr() for block in counters.bad], dtype=np.int64)
    for job in batch:
        addresses = np.array(job.addresses, dtype=np.int64)
        ready = _ready(job, addresses % 16 == 0, receipt)
        bad = blocks[job.slots // Counters.BLOCK] + job.slots % Counters.BLOCK * 8
        flat, sources = ready.flat.copy(), addresses[ready.takes]
        flat[ready.lines + SOURCE] += sources
        flat[ready.lines + WHOLE] += sources
        flat[ready.lines + BAD] = bad[ready.takes]
        for move in ready.given:
            move.scale.copy_(move.given_N)
        start(flat, ready.heads, counters.totals)
        for move, take in ready.uploads:
            for part in _uploaded(move, job.tensors[take], int(job.slots[take])):
                write([part], counters, receipt)


def digests(
    tensors: Sequence[torch.Tensor], first_rows: Sequence[int] = (), first_columns: Sequence[int] = ()
) -> torch.Tensor:
    """`oracle.digest` of each tensor as int64 (its 64 bits), on their device; one launch a dtype and row length."""
    sums = torch.zeros(len(tensors), 2, dtype=torch.int64, device=tensors[0].device if tensors else None)
    groups: dict[Group, list[tuple[int, ...]]] = defaultdict(list)
    # some are copies, which must live until the launch
    matrices = [oracle.as_integers(oracle.as_matrix(tensor)) for tensor in tensors]
    for i, matrix in enumerate(matrices):
        if matrix.numel() == 0:
            continue
        first = (first_rows[i] if first_rows else 0, first_columns[i] if first_columns else 0)
        source = matrix.data_ptr()
        group = Group("digest", matrix.dtype, matrix.dtype, matrix.shape[1], 0, _aligned(matrix, source))
        address = sums.data_ptr() + 16 * i
        entry = (source, *matrix.stride(), matrix.shape[0], address, 0, 0, 0, first[0], 1, 0, first[1])
        groups[group].append(entry)
    tables = ((group, np.array(entries, dtype=np.int64)) for group, entries in groups.items())
    start(*join([launch for group, table in tables for launch in _launches(group, table, True)]), sums)
    return sums[:, 0] % oracle.LANE + (sums[:, 1] << 32)


def _uploaded(move: Move, source: torch.Tensor, slot: int) -> Iterator[Job]:
    """The same from host memory, a few rows at a time (all at once where they share one scale)."""
    matrix, device = move.matrix(source), move.target_NK.device
    whole = matrix if move.whole is None else move.whole_rows(source)
    behind = 0 if move.whole is None else (move.offset - move.whole[0]) // move.column_stride
    kind = None if move.scale is None else move.scale.dim()
    per_scale = {0: max(1, move.rows), 2: oracle.BLOCK}.get(kind, 1)
    step = max(1, UPLOAD // max(1, whole.shape[1] * whole.element_size()) // per_scale) * per_scale
    for first in range(0, move.rows, step):
        part = slice(first, first + step)
        rows = whole[part].to(device)
        more = {} if move.whole is None else {"offset": behind * rows.stride(1), "whole": (0, whole.shape[1])}
        scale = move.scale[first // per_scale : -(-(first + len(rows)) // per_scale)] if kind else move.scale
        target, given_N = move.target_NK[part], None if move.given_N is None else move.given_N[part]
        more |= {"exact": move.exact, "given_N": given_N}
        moved = Move.of(rows, target, scale, first_row=move.first_row + first, weight=move.weight, **more)
        yield Job.of(moved, rows, slot)


def _ready(job: Job, aligned: np.ndarray, receipt: bool) -> Ready:
    """The job's launches, kept for the next refit.

    Args:
        aligned: for each tensor, whether it begins at a multiple of 16 bytes.
    """
    known = job.moves.notes = job.moves.notes or {}
    key = (receipt, aligned.tobytes())
    if key not in known:
        if len(known) == PATTERNS:  # a sender whose tensors lie differently each time
            known.clear()
        known[key] = _made_ready(job, aligned, receipt)
    return known[key]


def _made_ready(job: Job, aligned: np.ndarray, receipt: bool) -> Ready:
    tables: dict[Group, list[tuple[int, ...]]] = defaultdict(list)
    takes: dict[Group, list[int]] = defaultdict(list)
    uploads, given = [], []
    for move, take in zip(job.moves.moves, job.moves.takes, strict=True):
        source = job.tensors[take]
        if source.is_cpu is not move.target_NK.is_cpu:
            uploads.append((move, take))
            continue
        given += [move] if move.given_N is not None else []
        group, line = _line(move, source.dtype, bool(aligned[take]))
        tables[group].append(line)
        takes[group].append(take)
    launches, taken = [], []
    for group, table in tables.items():
        for launch in _launches(group, np.array(table, dtype=np.int64), receipt):
            launches.append(launch)
            taken += takes[group]
    flat, heads = join(launches)
    lines = [line for head in heads for line in range(head.table, head.starts, rows_kernels.FIELDS)]
    return Ready(flat, heads, np.array(lines, dtype=np.int64), np.array(taken, dtype=np.int64), uploads, given)


def _line(move: Move, dtype: torch.dtype, aligned: bool) -> tuple[Group, tuple[int, ...]]:
    target, scale, size = move.target_NK, move.scale, dtype.itemsize
    rows, length = target.shape
    if length > LONGEST_ROW:
        raise ValueError(f"rows of {length} elements: the CUDA kernels take at most {LONGEST_ROW}")
    if scale is not None and scale.dim() == 2 and move.first_row % oracle.BLOCK:
        raise ValueError(f"blocks of {oracle.BLOCK} rows cannot begin at row {move.first_row}")
    whole, whole_length = move.whole or (0, 0)
    source = (move.offset * size, whole * size, move.row_stride * size)
    sixteens = (*source, whole_length, target.data_ptr(), target.stride(0) * target.element_size(), length)
    aligned = aligned and move.column_stride == 1 and not any(number % 16 for number in sixteens)
    scale_at = 0 if scale is None else scale.data_ptr()
    read = (move.offset * size, move.row_stride, move.column_stride, rows)
    line = (*read, target.data_ptr(), target.stride(0), scale_at, 0, move.first_row, move.weight, whole * size, 0)
    return Group(_kind(move), dtype, target.dtype, length, whole_length, aligned), line


def _kind(move: Move) -> str:
    """What `write_rows` calls it."""
    if move.scale is None:
        return "copy"
    if move.target_NK.dtype != torch.int8:
        return ("fp8_tensor", "fp8", "fp8_blocks")[move.scale.dim()]
    return "int8_given" if move.given_N is not None else "int8_exact" if move.exact else "int8"


def _aligned(matrix: torch.Tensor, address: int) -> bool:
    row = matrix.stride(0) * matrix.element_size()
    return matrix.stride(1) == 1 and address % 16 == 0 and row % 16 == 0 and matrix.shape[1] % 16 == 0


def _launches(group: Group, table: np.ndarray, receipt: bool) -> Iterator[Launch]:
    if group.source not in TYPES or group.target not in TYPES:
        raise ValueError(f"no CUDA kernel takes {group.source} to {group.target}")
    rows = table[:, ROWS_OF]
    if not rows.any():
        return
    source, target = TYPES[group.source], TYPES[group.target]
    counting = (receipt, Counters.SPREAD, SAMPLE)
    if group.kind == "fp8_blocks":
        blocks = -(-rows // oracle.BLOCK) * -(-group.length // oracle.BLOCK)
        constants = (source, group.length, group.aligned, *counting)
        yield Launch(rows_kernels.write_blocks, table, blocks, constants, (("num_warps", 8),))
        return
    if group.kind == "fp8_tensor":
        yield from _scale_launches(group, table, rows, source)
    width, at_once, repeat, options = tiling(group.length, group.kind)
    shape = (group.length, group.whole, width, at_once, repeat, group.aligned)
    constants = (group.kind, source, target, *shape, *counting)
    yield Launch(rows_kernels.write_rows, table, -(-rows // (at_once * repeat)), constants, options)


def _scale_launches(group: Group, table: np.ndarray, rows: np.ndarray, source: tl.dtype) -> Iterator[Launch]:
    """fp8_tensor: one pass over the sources for the largest magnitudes, before the pass that writes."""
    length = group.whole or group.length
    width, at_once, _, options = tiling(length, group.kind)
    if group.whole:  # read these instead
        table = table.copy()
        table[:, SOURCE] = table[:, WHOLE]
    one_each = np.ones_like(rows)
    yield Launch(rows_kernels.tops_to_scales, table, one_each, (True,), ())
    constants = (source, length, width, at_once, group.aligned)
    yield Launch(rows_kernels.find_tops, table, -(-rows // at_once), constants, options)
    yield Launch(rows_kernels.tops_to_scales, table, one_each, (False,), ())


def tiling(length: int, kind: str) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    """How a launch of a kind walks rows of `length`: step, rows at a time, how often, and Triton's options.

    Few warps a row, and so many registers that the rows in flight stay in the first-level cache between their two
    readings: found on one H200 at 768, 2048, 3584 and 18,944, where each reaches 0.95 of a copy's bandwidth.
    """
    if length <= 256:
        step = triton.next_power_of_2(length)
        at_once, repeat, warps, registers = max(1, 2048 // step), 2, 4, 128
    else:
        at_once = 1
        step, repeat, warps, registers = next(found for longest, found in TILINGS.items() if length <= longest)
    if kind in DIVIDING:
        registers = max(registers, DIVIDING_REGISTERS)
    return step, at_once, repeat, (("num_warps", warps), ("maxnreg", registers))
