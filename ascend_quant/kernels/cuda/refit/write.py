"""A refit on CUDA: many matrices a launch, no host synchronisation, everything counted in the same pass (Triton).

A job is cut into groups that differ only in numbers (addresses, strides, rows); a group is one launch. What does not
change from refit to refit is kept with the job's moves. Digests are in digests.py.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels.chunks import write_in_chunks
from ascend_quant.kernels.cuda.refit import triton_rows as rows_kernels
from ascend_quant.kernels.cuda.refit import triton_tiles as tile_kernels
from ascend_quant.kernels.cuda.refit.digests import launches_of_nothing
from ascend_quant.kernels.cuda.refit.launches import Head, Launch, join, start
from ascend_quant.kernels.int4_places import TILE_N, MarlinTiles
from ascend_quant.kernels.moves import SAMPLE, Counters, Job, Move
from ascend_quant.kernels.registry import check_kind

READS_ARE_FREE = False  # reading a counter waits for the device
# of moves
KINDS = ("copy", "codes", "fp8_codes", "int8", "int8_exact", "int8_given", "fp8", "fp8_tensor", "fp8_blocks", "int4")

# columns of a launch's table
SOURCE, ROWS_OF, TARGET, TARGET_STRIDE, SCALE, BAD, WHOLE = (
    getattr(rows_kernels, name).value
    for name in ("SOURCE", "ROWS_OF", "TARGET", "TARGET_STRIDE", "SCALE", "BAD", "WHOLE")
)
LONGEST_ROW = 65536
TILINGS = {  # for rows of up to so many elements: step, how often, warps, registers
    1024: (256, 8, 1, 64),
    2560: (256, 4, 1, 96),
    8192: (512, 4, 2, 80),
    32768: (2048, 4, 8, 80),
    LONGEST_ROW: (4096, 2, 16, 64),
}
LEAST_REGISTERS = {"int8_exact": 104, "int8_given": 104, "copy": 96}  # by kind: what a division or a wide sum needs
TILES = (("num_warps", 8),)  # options of int4's kernel
UPLOAD = 32 << 20  # bytes of host memory that travel at a time
TORCH_ELEMENTS = 1 << 23  # that torch operations take at a time; each needs about 20 bytes of work space
SCRATCH = 1 << 20  # bytes: more than the scales of one int4 tile of rows take
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
    """The constants that moves of one launch share."""

    kind: str
    source: torch.dtype
    target: torch.dtype
    length: int
    whole: int
    aligned: bool
    shared: int = 0  # rows of the tensors, or elements of the groups, that have one scale


class Ready(NamedTuple):
    """A job's launches but for what changes from refit to refit: the sources' addresses and their counters.

    Attributes:
        flat: the launches' tables, with offsets in place of addresses.
        heads: the launches.
        lines, takes: where each line of the tables begins, and which of the job's tensors it reads.
        uploads: the moves whose source is in host memory, and which of the tensors that is.
        given: the moves with given scales, which the kernels find in their resident places.
        by_torch: the moves that have no kernel here, and which of the tensors each takes.
    """

    flat: np.ndarray
    heads: list[Head]
    lines: np.ndarray
    takes: np.ndarray
    uploads: list[tuple[Move, int]]
    given: list[Move]
    by_torch: list[tuple[Move, int]]


def write(batch: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out a batch of moves; asynchronous.

    Args:
        batch: the sources must stay as they are until the current stream has passed this point.
        receipt: whether changed codes and the digest are counted; non-finite elements always are.

    Raises:
        ValueError: rows longer than 65,536 elements, or a dtype without a kernel.
        NoKernels: another kind of rows than `KINDS`.
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
        for move, take in ready.by_torch:
            rows = max(oracle.BLOCK, TORCH_ELEMENTS // move.target_NK.shape[1] // oracle.BLOCK * oracle.BLOCK)
            bad_of_source = counters.bad_of(int(job.slots[take]))
            write_in_chunks(move, job.tensors[take], bad_of_source, counters, receipt, rows)
        for move, take in ready.uploads:
            for part in _uploaded(move, job.tensors[take], int(job.slots[take])):
                write([part], counters, receipt)


def prepare(device: torch.device, writes: Iterable[tuple[Move, torch.dtype]] = ()) -> None:
    """Compile what digests and moves of these kinds will need, so that the first refit waits for no compiler.

    Each kernel is launched on no rows; what it stores regardless goes to scratch memory.

    Args:
        writes: a move, and the dtype of the tensors that it will read; these begin at multiples of 16 bytes.
    """
    groups = set()
    for move, dtype in writes:
        check_kind(move.kind, KINDS, "cuda")
        has_kernel = isinstance(move.place, MarlinTiles) if move.kind == "int4" else move.target_NK.dtype in TYPES
        if has_kernel:
            group = _line(move, dtype, aligned=True)[0]
            groups.add(group._replace(shared=1) if group.kind == "fp8_tensor" else group)
    scratch = torch.zeros(SCRATCH, dtype=torch.uint8, device=device)
    line = np.zeros((1, rows_kernels.FIELDS), dtype=np.int64)
    line[0, [SOURCE, TARGET, SCALE, BAD, WHOLE]] = scratch.data_ptr()
    line[0, [ROWS_OF, TARGET_STRIDE]] = TILE_N  # of no rows nothing would be started: see below
    launches = [launch for group in groups for launch in _launches(group, line, True)]
    for launch in launches:
        launch.table[:, ROWS_OF] = 0
    launches += launches_of_nothing(scratch)
    one = np.ones(1, dtype=np.int64)
    start(*join([launch._replace(programs=one) for launch in launches]), Counters(device).totals)


def _uploaded(move: Move, source: torch.Tensor, slot: int) -> Iterator[Job]:
    """Yield the jobs of a move from host memory, a few rows at a time (the whole tensor where it has one scale)."""
    if move.among is not None:
        yield _uploaded_whole(move, source, slot)
        return
    matrix, device = move.matrix(source), move.target_NK.device
    whole = matrix if move.whole is None else move.rows_with_scale(source) if move.coded else move.whole_rows(source)
    behind = 0 if move.whole is None else (move.offset - move.whole[0]) // move.column_stride
    per_scale = oracle.BLOCK if move.kind == "fp8_blocks" else 1
    step = max(1, UPLOAD // max(1, whole.shape[1] * whole.element_size()) // per_scale) * per_scale
    for first in range(0, move.rows, step):
        part = slice(first, first + step)
        rows = whole[part].to(device)
        more = {} if move.whole is None else {"offset": behind * rows.stride(1), "whole": (0, move.whole[1])}
        scale = None if move.scale is None else move.scale[first // per_scale : -(-(first + len(rows)) // per_scale)]
        target, given_N = move.target_NK[part], None if move.given_N is None else move.given_N[part]
        more |= {"exact": move.exact, "coded": move.coded, "given_N": given_N}
        moved = Move.of(rows, target, scale, first_row=move.first_row + first, weight=move.weight, **more)
        yield Job.of(moved, rows, slot)


def _uploaded_whole(move: Move, source: torch.Tensor, slot: int) -> Job:
    tensor, (before, rows) = move.whole_tensor(source).to(move.target_NK.device), move.among
    behind = 0 if move.whole is None else (move.offset - move.whole[0]) // move.column_stride
    first = before * tensor.stride(0)
    more = {"row_stride": tensor.stride(0), "column_stride": tensor.stride(1), "among": (before, rows)}
    more |= {"offset": first + behind * tensor.stride(1), "whole": (first, tensor.shape[1])}
    moved = Move(move.target_NK, move.scale, first_row=move.first_row, weight=move.weight, **more)
    return Job.of(moved, tensor, slot)


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
    uploads, given, by_torch = [], [], []
    for move, take in zip(job.moves.moves, job.moves.takes, strict=True):
        source = job.tensors[take]
        check_kind(move.kind, KINDS, "cuda")
        if move.kind == "int4" and not _makes_tiles(move, source):
            by_torch.append((move, take))
            continue
        if move.kind != "int4" and source.is_cpu is not move.target_NK.is_cpu:
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
    return Ready(
        flat, heads, np.array(lines, dtype=np.int64), np.array(taken, dtype=np.int64), uploads, given, by_torch
    )


def _makes_tiles(move: Move, source: torch.Tensor) -> bool:
    """Return whether int4 rows are whole tiles of Marlin's, as those of true models are."""
    if not isinstance(move.place, MarlinTiles) or source.is_cpu is not move.place.tensor.is_cpu:
        return False
    return move.first_row % TILE_N == 0 and move.rows % TILE_N == 0


def _line(move: Move, dtype: torch.dtype, aligned: bool) -> tuple[Group, tuple[int, ...]]:
    target, scale, size = move.target_NK, move.scale, dtype.itemsize
    rows, length = target.shape
    if length > LONGEST_ROW:
        raise ValueError(f"rows of {length} elements: the CUDA kernels take at most {LONGEST_ROW}")
    kind = move.kind
    if kind == "fp8_blocks" and (move.first_row % oracle.BLOCK or move.first_block not in (None, _block(move))):
        raise ValueError(f"blocks of {oracle.BLOCK} rows cannot begin at row {move.first_row}")
    whole, whole_length, tensor_rows = *(move.whole or (0, 0)), 0
    if kind == "fp8_tensor":
        whole, whole_length = move.whole or (move.offset, length)
        before, tensor_rows = move.among
        whole -= before * move.row_stride
    source = (move.offset * size, whole * size, move.row_stride * size)
    sixteens = (*source, whole_length, target.data_ptr(), target.stride(0) * target.element_size(), length)
    aligned = aligned and move.column_stride == 1 and not any(number % 16 for number in sixteens)
    scale_at = 0 if scale is None else scale.data_ptr()
    read = (move.offset * size, move.row_stride, move.column_stride, rows)
    line = (*read, target.data_ptr(), target.stride(0), scale_at, 0, move.first_row, move.weight, whole * size, 0)
    if kind == "int4":
        words, last = move.place.tensor, (scale_at, 0, move.first_row, move.weight, 0, 0)
        aligned = aligned and move.place.rows % 16 == 0
        line = (*read, words.data_ptr(), move.place.rows, *last)
        return Group(kind, dtype, words.dtype, length, 0, aligned, move.group), line
    return Group(kind, dtype, target.dtype, length, whole_length, aligned, tensor_rows), line


def _block(move: Move) -> int:
    return move.first_row // oracle.BLOCK


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
    """fp8_tensor: one pass over the whole tensors for the largest magnitudes, before the pass that writes."""
    width, at_once, _, options = tiling(group.whole, group.kind)
    table = table.copy()
    table[:, SOURCE], table[:, ROWS_OF] = table[:, WHOLE], group.shared
    one_each = np.ones_like(table[:, ROWS_OF])
    yield Launch(rows_kernels.tops_to_scales, table, one_each, (True,), ())
    constants = (source, group.whole, width, at_once, group.aligned)
    yield Launch(rows_kernels.find_tops, table, -(-table[:, ROWS_OF] // at_once), constants, options)
    yield Launch(rows_kernels.tops_to_scales, table, one_each, (False,), ())


def tiling(length: int, kind: str) -> tuple[int, int, int, tuple[tuple[str, int], ...]]:
    """Return how a kernel walks rows of `length`: elements a step, rows at a time, repetitions, and Triton's options.

    Few warps a row, and so many registers that the rows in flight stay in the first-level cache between their two
    readings: found on one H200 at 768, 2048, 3584 and 18,944, where each reaches 0.95 of a copy's bandwidth.
    """
    if length <= 256:
        step = triton.next_power_of_2(length)
        at_once, repeat, warps, registers = max(1, 2048 // step), 2, 4, 128
    else:
        at_once = 1
        step, repeat, warps, registers = next(found for longest, found in TILINGS.items() if length <= longest)
    registers = max(registers, LEAST_REGISTERS.get(kind, 0))
    return step, at_once, repeat, (("num_warps", warps), ("maxnreg", registers))
