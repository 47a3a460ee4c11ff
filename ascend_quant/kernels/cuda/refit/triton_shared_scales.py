"""Triton kernels for fp8 scales shared by several rows: one per 128x128 block, or one per tensor.

A program writes one block. A tensor's scale is computed before its rows are written (`triton_rows.write_rows`).
"""

import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit import triton_digest as digest
from ascend_quant.kernels.cuda.refit.triton_entries import (
    BAD,
    ENTRY,
    FIRST_ROW,
    INF_BITS,
    ROWS_OF,
    SCALE,
    account,
    largest,
    loaded,
    places,
    report,
)

BLOCK = tl.constexpr(oracle.BLOCK)


@triton.jit(do_not_specialize=["pieces"])
def write_blocks(
    table,
    starts,
    pieces,
    totals,
    SOURCE_TYPE: tl.constexpr,
    K: tl.constexpr,
    ALIGNED: tl.constexpr,
    RECEIPT: tl.constexpr,
    SPREAD: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    """Quantize to fp8 with a scale per 128x128 block; one program per block."""
    across: tl.constexpr = (K + BLOCK - 1) // BLOCK
    tile = tl.program_id(0)
    piece = digest.find(starts, pieces, tile)
    entry = table + piece * ENTRY
    block = (tile - tl.load(starts + piece)).to(tl.int64)
    down, left = block // across, block % across * BLOCK
    rows = down * BLOCK + tl.arange(0, BLOCK)
    columns = left + tl.arange(0, BLOCK)
    valid = rows < tl.load(entry + ROWS_OF)
    inside = valid[:, None] & (columns < K)[None, :]
    source, target, row_stride, target_stride, column_stride = places(entry, SOURCE_TYPE, tl.int8, ALIGNED)
    part = loaded(source + rows[:, None] * row_stride, column_stride, valid, columns, K, "evict_first")
    top = tl.max(tl.max(elements.magnitude(elements.rounded(part)), 1), 0)
    if top >= INF_BITS:
        bad = tl.sum(tl.sum((elements.magnitude(elements.rounded(part)) >= INF_BITS).to(tl.int64), 1), 0)
        tl.atomic_add(tl.load(entry + BAD).to(tl.pointer_type(tl.int64)), bad, sem="relaxed")
    scale = elements.scale_of(top, "fp8")
    first_row = tl.load(entry + FIRST_ROW)
    tl.store(tl.load(entry + SCALE).to(tl.pointer_type(tl.float32)) + block, scale)
    codes = elements.fp8(elements.rounded(part), scale)
    to = target + rows[:, None] * target_stride + columns[None, :]
    if RECEIPT:
        old = tl.load(to, mask=inside & ((first_row + rows) % SAMPLE == 0)[:, None], other=0)
        differs = inside & ((first_row + rows) % SAMPLE == 0)[:, None] & (old != codes)
        sum_R = _sum_of_block(codes, left.to(tl.int32), K)
        low, high = digest.weighted_rows(sum_R, first_row + rows)
        scale_sum = 3 * _sum_of_scale(scale, (left // BLOCK).to(tl.int32), across)
        scale_low, scale_high = digest.weighted_rows(scale_sum, first_row // BLOCK + down + tl.arange(0, 1))
        changed = tl.sum(tl.sum(differs.to(tl.int32), 1), 0)
        account(totals, entry, tile, changed, low + scale_low, high + scale_high, SPREAD)
    tl.store(to, codes, mask=inside)


@triton.jit(do_not_specialize=["pieces"])
def find_tops(
    table,
    starts,
    pieces,
    totals,
    SOURCE_TYPE: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,
):
    """Write the absmax of each tensor, as the bits of a float32, into its first scale, which must be 0 before.

    This reads the whole tensor, and counts its non-finite elements.
    """
    tile = tl.program_id(0)
    piece = digest.find(starts, pieces, tile)
    entry = table + piece * ENTRY
    rows = (tile - tl.load(starts + piece)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < tl.load(entry + ROWS_OF)
    source, _, row_stride, _, column_stride = places(entry, SOURCE_TYPE, tl.int8, ALIGNED)
    at = source + rows[:, None] * row_stride
    top = largest(at, column_stride, valid, K, WIDTH, ROWS, tl.bfloat16)
    report(top, entry, at, column_stride, valid, K, WIDTH, tl.bfloat16)
    tl.atomic_max(tl.load(entry + SCALE).to(tl.pointer_type(tl.int32)), tl.max(top, 0), sem="relaxed")


@triton.jit(do_not_specialize=["pieces"])
def tops_to_scales(table, starts, pieces, totals, CLEAR: tl.constexpr):
    """Turn the absmax values of `find_tops` into scales, or reset them to 0 before it."""
    at = tl.load(table + tl.program_id(0) * ENTRY + SCALE).to(tl.pointer_type(tl.float32))
    if CLEAR:
        tl.store(at, 0.0)
    else:
        tl.store(at, elements.scale_of(tl.load(at).to(tl.int32, bitcast=True), "fp8"))


@triton.jit
def _sum_of_block(codes, left, K: tl.constexpr):
    """Return int64 (BLOCK): the row sums of a block of bytes from column `left` on."""
    pairs = left // 2 + tl.arange(0, BLOCK // 2)
    weight = digest.column_weight(pairs, K // 2 + BLOCK)
    return tl.sum(digest.weighted(digest.pairs_of(codes, 1, BLOCK, BLOCK), weight), 1)


@triton.jit
def _sum_of_scale(scale, column, COLUMNS: tl.constexpr):
    """Return int64 (1): the digest sum of one float32 in a row of scales."""
    pairs = digest.pairs_of(tl.full((1, 1), 0, tl.int32) + scale.to(tl.int32, bitcast=True), 4, 1, 1)
    return tl.sum(digest.weighted(pairs, digest.column_weight(column * 2 + tl.arange(0, 2), COLUMNS * 2)), 1)
