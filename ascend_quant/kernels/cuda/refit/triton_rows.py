"""A Triton kernel that writes rows of many matrices in one launch; a program takes a few rows, and reads them once.

Kind, K, dtypes and alignment are compile-time constants of a launch; everything else is in its table
(triton_entries.py). `triton_elements` converts the elements.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit import triton_digest as digest
from ascend_quant.kernels.cuda.refit.triton_entries import (
    BAD,
    ENTRY,
    FIRST_ROW,
    ROWS_OF,
    SCALE,
    TOTALS,
    WHOLE,
    ZERO,
    account,
    largest,
    loaded,
    places,
    report,
)


@triton.jit(do_not_specialize=["pieces"])
def write_rows(
    table,
    starts,
    pieces,
    totals,
    # own scale per row: int8, int8_float32, fp8; known scale: int8_static, fp8_tensor; int8_ and fp8_prequantized; copy
    KIND: tl.constexpr,
    SOURCE_TYPE: tl.constexpr,
    TARGET_TYPE: tl.constexpr,
    K: tl.constexpr,
    L: tl.constexpr,  # length of the whole rows; 0 if the matrix contains them
    WIDTH: tl.constexpr,  # a row is walked twice in steps of WIDTH, the second time from the cache
    ROWS: tl.constexpr,  # rows at a time
    REPEAT: tl.constexpr,
    ALIGNED: tl.constexpr,  # every address and row stride is a multiple of 16 bytes, and columns are adjacent
    RECEIPT: tl.constexpr,
    SPREAD: tl.constexpr,
    SAMPLE: tl.constexpr,
):
    SIZE: tl.constexpr = TARGET_TYPE.primitive_bitwidth // 8
    PAIRS: tl.constexpr = (WIDTH * SIZE + 1) // 2
    tile = tl.program_id(0)
    piece = digest.find(starts, pieces, tile)
    entry = table + piece * ENTRY
    source, target, row_stride, target_stride, column_stride = places(entry, SOURCE_TYPE, TARGET_TYPE, ALIGNED)
    count, first_row = tl.load(entry + ROWS_OF), tl.load(entry + FIRST_ROW)
    scale_address = tl.load(entry + SCALE).to(tl.pointer_type(tl.float32))
    start = (tile - tl.load(starts + piece)).to(tl.int64) * (ROWS * REPEAT)
    columns = tl.arange(0, WIDTH)
    FLOAT32: tl.constexpr = KIND == "int8_float32" or KIND == "int8_static"
    PREQUANTIZED: tl.constexpr = KIND == "int8_prequantized" or KIND == "fp8_prequantized"
    READ_TYPE: tl.constexpr = tl.float32 if FLOAT32 else tl.bfloat16
    first_weight = digest.column_weight(tl.arange(0, PAIRS), PAIRS)
    SPANS: tl.constexpr = PAIRS // digest.SPAN
    changed = tl.zeros((1,), tl.int32)
    steps = tl.arange(0, REPEAT)
    sum_TR = tl.zeros((REPEAT, ROWS), tl.int64)  # sums of all rows, to which the row weights are applied at once
    for step in range(REPEAT):
        rows = start + step * ROWS + tl.arange(0, ROWS)
        valid = rows < count
        at = source + rows[:, None] * row_stride
        scale, factor = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        if PREQUANTIZED:
            sent = tl.load(entry + WHOLE).to(tl.pointer_type(tl.int8)) + L
            scale = _sent_scale(sent + rows * row_stride, valid)
            tl.store(scale_address + rows, scale, mask=valid)
            spoilt = elements.spoilt(scale, KIND)
        elif KIND != "copy":
            if L > 0:
                whole = tl.load(entry + WHOLE).to(tl.pointer_type(SOURCE_TYPE))
                if ALIGNED:
                    whole = tl.multiple_of(whole, 16)
                absmax = largest(whole + rows[:, None] * row_stride, column_stride, valid, L, WIDTH, ROWS, READ_TYPE)
            else:
                absmax = largest(at, column_stride, valid, K, WIDTH, ROWS, READ_TYPE)
            if KIND == "fp8_tensor":
                scale = tl.load(scale_address + rows * 0, mask=valid, other=1.0)
                tl.store(scale_address + rows, scale, mask=valid)
            else:
                report(absmax, entry, at, column_stride, valid, K, WIDTH, READ_TYPE)
            if KIND == "int8_static":
                scale = tl.load(scale_address + rows, mask=valid, other=1.0)
                if RECEIPT and tl.max(elements.lost(absmax.to(tl.float32, bitcast=True), scale).to(tl.int32), 0) > 0:
                    clamped = _clamped(at, column_stride, valid, scale, K, WIDTH)
                    tl.atomic_add(totals + tile % SPREAD * TOTALS + 3 + tl.arange(0, 1), clamped, sem="relaxed")
            elif KIND != "fp8_tensor":
                scale = elements.scale_of(absmax, KIND)
                tl.store(scale_address + rows, scale, mask=valid)
            if KIND == "int8":
                factor = elements.reciprocal(absmax, scale)

        to = target + rows[:, None] * target_stride
        if RECEIPT and KIND != "copy":
            compared = valid & ((first_row + rows) % SAMPLE == 0)
            if tl.max(compared.to(tl.int32), 0) > 0:  # before they are overwritten
                changed += _changed(at, to, column_stride, compared, scale, factor, K, WIDTH, KIND)
        sums = tl.zeros((ROWS, PAIRS), tl.int64)
        top = tl.zeros((ROWS, WIDTH), tl.float32)
        if start + step * ROWS < count:  # a branch, so that loads are not hoisted, for lack of registers
            if RECEIPT:  # weights known to be equal in each row would all be kept, as 64 bits each
                zero = tl.load(entry + ZERO, volatile=True).to(tl.int32)
                # long rows leave no registers for the first weights
                weight = digest.column_weight(tl.arange(0, PAIRS) + zero, PAIRS) if WIDTH > 512 else first_weight + zero
            for first in tl.static_range(0, K, WIDTH):
                part = loaded(at, column_stride, valid, first + columns, K, "evict_first")
                value, bits = elements.converted(part, scale, factor, KIND, TARGET_TYPE)
                if KIND == "copy":
                    top = tl.maximum(top, tl.abs(elements.as_float(value)), propagate_nan=tl.PropagateNan.ALL)
                if KIND == "fp8_prequantized":
                    top = tl.maximum(top, ((value & 0x7F) == 0x7F).to(tl.float32))
                _store(to, value, valid, first + columns, K)
                if RECEIPT:
                    sums += digest.weighted(digest.pairs_of(bits, SIZE, ROWS, WIDTH), weight)
                    weight *= digest.span_power(SPANS)
        if KIND == "copy":
            report(tl.max(elements.magnitude(top), 1), entry, at, column_stride, valid, K, WIDTH, TARGET_TYPE)
        if PREQUANTIZED:
            spoilt = tl.maximum(spoilt, (tl.max(top, 1) > 0).to(tl.int32))
            if tl.max(spoilt, 0) > 0:
                counter = tl.load(entry + BAD).to(tl.pointer_type(tl.int64)) + tl.arange(0, 1)
                tl.atomic_add(counter, tl.sum(spoilt.to(tl.int64), 0), sem="relaxed")
        if RECEIPT:
            sum_R = tl.sum(sums, 1)
            if KIND != "copy":
                sum_R += 3 * tl.where(valid, digest.scale_sum(scale), 0)
            found = tl.sum(sum_R) if ROWS == 1 else sum_R[None, :]
            sum_TR = tl.where((steps == step)[:, None], found, sum_TR)
    if RECEIPT:
        row_TR = start + steps[:, None] * ROWS + tl.arange(0, ROWS)[None, :]
        low, high = digest.weighted_rows(sum_TR, first_row + row_TR)
        account(totals, entry, tile, changed, low, high, SPREAD)


@triton.jit
def _sent_scale(at, valid):
    """Load the float32 scales at these addresses, which may be unaligned; 0 for rows out of range."""
    bits = tl.zeros(valid.shape, tl.int32)
    for byte in tl.static_range(0, 4):
        bits |= (tl.load(at + byte, mask=valid, other=0).to(tl.int32) & 0xFF) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _changed(at, to, column_stride, rows, scale, factor, K: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Count the int8 codes of these rows that will change."""
    count = tl.zeros((1,), tl.int32)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        columns = first + tl.arange(0, WIDTH)
        part = loaded(at, column_stride, rows, columns, K, "evict_first")
        new, _ = elements.converted(part, scale, factor, KIND, tl.int8)
        inside = rows[:, None] & (columns < K)[None, :]
        old = tl.load(to + columns[None, :], mask=inside, other=0)
        count += tl.sum(tl.sum((inside & (old != new)).to(tl.int32), 1), 0)
    return count


@triton.jit
def _clamped(at, column_stride, rows, scale, K: tl.constexpr, WIDTH: tl.constexpr):
    """Count the int8 codes of these rows that static scales clamp."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = loaded(at, column_stride, rows, first + tl.arange(0, WIDTH), K, "evict_first")
        count += tl.sum(tl.sum(elements.lost(part, scale[:, None]).to(tl.int64), 1), 0)
    return count


@triton.jit
def _store(to, values, valid, columns, K: tl.constexpr):
    tl.store(to + columns[None, :], values, mask=valid[:, None] & (columns < K)[None, :], cache_modifier=".cs")
