"""Entries of a launch table, one per matrix, and device functions shared by row kernels: addresses, loads, statistics.

A table has one entry per matrix (`FIELDS` numbers), and the index of its first tile. A program finds its matrix by
bisection (`triton_digest.find`).
"""

import triton
import triton.language as tl

from ascend_quant.kernels.counters import Counters
from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit import triton_digest as digest

FIELDS = 12
(
    SOURCE,
    ROW_STRIDE,
    COLUMN_STRIDE,
    ROWS_OF,
    TARGET,
    TARGET_STRIDE,
    SCALE,
    BAD,
    FIRST_ROW,
    WEIGHT,
    WHOLE,
    ZERO,
) = (tl.constexpr(i) for i in range(FIELDS))
ENTRY = tl.constexpr(FIELDS)
TOTALS = tl.constexpr(Counters.TOTALS)
INF_BITS = elements.INF_BITS


@triton.jit
def places(entry, SOURCE_TYPE: tl.constexpr, TARGET_TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Return addresses and strides of an entry's source and target; aligned ones allow 16-byte accesses."""
    source = tl.load(entry + SOURCE).to(tl.pointer_type(SOURCE_TYPE))
    target = tl.load(entry + TARGET).to(tl.pointer_type(TARGET_TYPE))
    row_stride, target_stride = tl.load(entry + ROW_STRIDE), tl.load(entry + TARGET_STRIDE)
    if ALIGNED:
        column_stride = 1
        source, target = tl.multiple_of(source, 16), tl.multiple_of(target, 16)
        row_stride, target_stride = tl.multiple_of(row_stride, 16), tl.multiple_of(target_stride, 16)
    else:
        column_stride = tl.load(entry + COLUMN_STRIDE)
    return source, target, row_stride, target_stride, column_stride


@triton.jit
def loaded(at, column_stride, valid, columns, K: tl.constexpr, AGAIN: tl.constexpr):
    """Load elements of some rows; AGAIN="evict_last" keeps them in the cache for a second read."""
    inside = valid[:, None] & (columns < K)[None, :]
    return tl.load(at + columns[None, :] * column_stride, mask=inside, other=0.0, eviction_policy=AGAIN)


@triton.jit
def largest(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Return each row's absmax in TYPE, as the bits of a float32."""
    top = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.static_range(0, K, WIDTH):
        part = loaded(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_last")
        values = elements.as_float(part) if tl.float32 == TYPE else elements.rounded(part)
        top = tl.maximum(top, tl.abs(values), propagate_nan=tl.PropagateNan.ALL)
    return tl.max(elements.magnitude(top), 1)


@triton.jit
def report(absmax, entry, at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """Count non-finite elements (as TYPE) if a row's absmax shows that there are any."""
    if tl.max(absmax, 0) >= INF_BITS:
        counter = tl.load(entry + BAD).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, _bad(at, column_stride, valid, K, WIDTH, TYPE), sem="relaxed")


@triton.jit
def _bad(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """Return the number of NaN or Inf elements (as TYPE); at least 1, for one elsewhere in the whole row."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = loaded(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_first")
        magnitude = elements.magnitude(elements.as_float(elements.cast(part, TYPE)))
        count += tl.sum(tl.sum((magnitude >= INF_BITS).to(tl.int64), 1), 0)
    return tl.max(tl.maximum(count, 1), 0)


@triton.jit
def account(totals, entry, tile, changed, low, high, SPREAD: tl.constexpr):
    """Add a program's results to the refit's counters: changed codes, and the two sums of the rows' digest."""
    one = tl.arange(0, 1)
    at = totals + tile % SPREAD * TOTALS + one
    found = digest.times(digest.joined(low, high), tl.load(entry + WEIGHT))
    tl.atomic_add(at, changed.to(tl.int64), sem="relaxed")
    tl.atomic_add(at + 1, found & digest.LOW, sem="relaxed")
    tl.atomic_add(at + 2, found >> 32, sem="relaxed")
