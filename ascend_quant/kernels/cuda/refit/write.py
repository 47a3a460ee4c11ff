"""A refit on CUDA (Triton): many matrices per launch, no host synchronization, statistics in the same pass.

A job's writes are grouped into launches (grouping.py). The parts that do not change between refits are cached with the
job's writes.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from ascend_quant import oracle
from ascend_quant.kernels.chunks import write_in_chunks
from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.cuda.refit.digests import launches_of_nothing
from ascend_quant.kernels.cuda.refit.grouping import (
    BAD,
    ROWS_OF,
    SCALE,
    SOURCE,
    TARGET,
    TARGET_STRIDE,
    TYPES,
    WHOLE,
    Group,
    launches_of,
    line_of,
)
from ascend_quant.kernels.cuda.refit.launches import Head, join, start
from ascend_quant.kernels.cuda.refit.triton_entries import FIELDS
from ascend_quant.kernels.cuda.refit.uploads import uploaded
from ascend_quant.kernels.int4_layouts import TILE_N, MarlinTiles
from ascend_quant.kernels.registry import check_kind
from ascend_quant.kernels.writes import Int4Write, Job, RowWrite

READS_ARE_FREE = False  # reading a counter waits for the device
KINDS = (  # kinds of writes that have a kernel
    *("copy", "int8_prequantized", "fp8_prequantized", "int8", "int8_float32", "int8_static"),
    *("fp8", "fp8_tensor", "fp8_blocks", "int4"),
)

TORCH_ELEMENTS = 1 << 23  # elements that torch operations process at a time; each needs about 20 bytes of work space
SCRATCH = 1 << 20  # bytes: more than the scales of one row of int4 tiles
PATTERNS = 4  # alignment patterns of a job's tensors that are cached


class Ready(NamedTuple):
    """A job's prepared launches, without the sources' addresses and counters, which change between refits.

    Attributes:
        flat: the concatenated launch tables, with offsets in place of addresses.
        heads: the launches.
        lines, source_index: the position of each table line, and the index of the job's tensor that it reads.
        uploads: writes whose source is in host memory, each with the index of its tensor.
        static: writes with static scales, which are copied to the resident scales before the kernels run.
        by_torch: writes that have no kernel here, each with the index of its tensor.
    """

    flat: np.ndarray
    heads: list[Head]
    lines: np.ndarray
    source_index: np.ndarray
    uploads: list[tuple[RowWrite, int]]
    static: list[RowWrite]
    by_torch: list[tuple[RowWrite, int]]


def write(jobs: Sequence[Job], counters: Counters, receipt: bool = True) -> None:
    """Carry out writes; asynchronous.

    Args:
        jobs: writes and their sources, which must not change until the current stream has passed this point.
        receipt: whether changed codes and the digest are counted; non-finite elements always are.

    Raises:
        ValueError: rows are longer than 65,536 elements, or a dtype has no kernel.
        NoKernels: the kind of a write is not in `KINDS`.
    """
    blocks = np.array([block.data_ptr() for block in counters.bad], dtype=np.int64)
    for job in jobs:
        addresses = np.array(job.addresses, dtype=np.int64)
        ready = _ready(job, addresses % 16 == 0, receipt)
        bad = blocks[job.slots // Counters.BLOCK] + job.slots % Counters.BLOCK * 8
        flat, sources = ready.flat.copy(), addresses[ready.source_index]
        flat[ready.lines + SOURCE] += sources
        flat[ready.lines + WHOLE] += sources
        flat[ready.lines + BAD] = bad[ready.source_index]
        for one in ready.static:
            one.scale.copy_(one.static_scale)
        start(flat, ready.heads, counters.totals)
        for one, index in ready.by_torch:
            rows = max(oracle.BLOCK, TORCH_ELEMENTS // one.target.shape[1] // oracle.BLOCK * oracle.BLOCK)
            bad_of_source = counters.bad_of(int(job.slots[index]))
            write_in_chunks(one, job.tensors[index], bad_of_source, counters, receipt, rows)
        for one, index in ready.uploads:
            for part in uploaded(one, job.tensors[index], int(job.slots[index])):
                write([part], counters, receipt)


def prepare(device: torch.device, writes: Iterable[tuple[RowWrite, torch.dtype]] = ()) -> None:
    """Compile the kernels that digests and writes of these kinds need, so that the first refit does not wait for them.

    Each kernel is launched with zero rows; any stores go to scratch memory.

    Args:
        writes: writes, each with the dtype of the tensors that it will read, which are aligned to 16 bytes.
    """
    groups = set()
    for one, dtype in writes:
        check_kind(one.kind, KINDS, "cuda")
        has_kernel = isinstance(one.layout, MarlinTiles) if isinstance(one, Int4Write) else one.target.dtype in TYPES
        if has_kernel:
            group = line_of(one, dtype, aligned=True)[0]
            groups.add(group._replace(shared=1) if group.kind == "fp8_tensor" else group)
    scratch = torch.zeros(SCRATCH, dtype=torch.uint8, device=device)
    line = np.zeros((1, FIELDS), dtype=np.int64)
    line[0, [SOURCE, TARGET, SCALE, BAD, WHOLE]] = scratch.data_ptr()
    line[0, [ROWS_OF, TARGET_STRIDE]] = TILE_N  # with zero rows nothing would be launched: see below
    launches = [launch for group in groups for launch in launches_of(group, line, True)]
    for launch in launches:
        launch.table[:, ROWS_OF] = 0
    launches += launches_of_nothing(scratch)
    one_each = np.ones(1, dtype=np.int64)
    start(*join([launch._replace(programs=one_each) for launch in launches]), Counters(device).totals)


def _ready(job: Job, aligned: np.ndarray, receipt: bool) -> Ready:
    """Return the job's launches, cached for the next refit.

    Args:
        aligned: for each tensor, whether it is aligned to 16 bytes.
    """
    known = job.batch.kernel_cache = job.batch.kernel_cache or {}
    key = (receipt, aligned.tobytes())
    if key not in known:
        if len(known) == PATTERNS:  # a sender whose tensors are aligned differently every time
            known.clear()
        known[key] = _made_ready(job, aligned, receipt)
    return known[key]


def _made_ready(job: Job, aligned: np.ndarray, receipt: bool) -> Ready:
    tables: dict[Group, list[tuple[int, ...]]] = defaultdict(list)
    read: dict[Group, list[int]] = defaultdict(list)
    uploads, static, by_torch = [], [], []
    for one, index in zip(job.batch.writes, job.batch.source_index, strict=True):
        source, kind = job.tensors[index], one.kind
        check_kind(kind, KINDS, "cuda")
        if kind == "int4" and not _makes_tiles(one, source):
            by_torch.append((one, index))
            continue
        if kind != "int4" and source.is_cpu is not one.target.is_cpu:
            uploads.append((one, index))
            continue
        static += [one] if kind == "int8_static" else []
        group, line = line_of(one, source.dtype, bool(aligned[index]))
        tables[group].append(line)
        read[group].append(index)
    launches, source_index = [], []
    for group, table in tables.items():
        for launch in launches_of(group, np.array(table, dtype=np.int64), receipt):
            launches.append(launch)
            source_index += read[group]
    flat, heads = join(launches)
    lines = [line for head in heads for line in range(head.table, head.starts, FIELDS)]
    of_lines = np.array(lines, dtype=np.int64), np.array(source_index, dtype=np.int64)
    return Ready(flat, heads, *of_lines, uploads, static, by_torch)


def _makes_tiles(write: Int4Write, source: torch.Tensor) -> bool:
    """Return whether int4 rows form whole Marlin tiles, as those of real models do."""
    if not isinstance(write.layout, MarlinTiles) or source.is_cpu is not write.layout.tensor.is_cpu:
        return False
    return write.first_row % TILE_N == 0 and write.rows % TILE_N == 0
