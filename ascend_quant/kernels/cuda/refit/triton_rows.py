"""Triton kernels that write many matrices in one launch, one program a few rows, each element read once.

A launch takes a table with one entry a matrix (`FIELDS` numbers) and the number of its first tile; a program finds
its matrix by bisection. What is the same for a whole launch (kind, K, dtypes, alignment) is compiled in. What becomes
of an element is in `triton_elements`.
"""

import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit import triton_digest as digest
from ascend_quant.kernels.moves import Counters

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
BLOCK = tl.constexpr(oracle.BLOCK)
INF_BITS = elements.INF_BITS


@triton.jit(do_not_specialize=["pieces"])
def write_rows(
    table,
    starts,
    pieces,
    totals,
    # int8, int8_exact, fp8 (a scale a row) | int8_given, fp8_tensor (scale known) | codes, fp8_codes | copy
    KIND: tl.constexpr,
    SOURCE_TYPE: tl.constexpr,
    TARGET_TYPE: tl.constexpr,
    K: tl.constexpr,
    L: tl.constexpr,  # length of the whole rows; 0 where the matrix holds them
    WIDTH: tl.constexpr,  # a row is walked in steps of WIDTH, twice: the second time it is in the cache
    ROWS: tl.constexpr,  # at a time
    REPEAT: tl.constexpr,
    ALIGNED: tl.constexpr,  # every address and row stride a multiple of 16 bytes, columns adjacent
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
    EXACT: tl.constexpr = KIND == "int8_exact" or KIND == "int8_given"
    CODED: tl.constexpr = KIND == "codes" or KIND == "fp8_codes"
    READ_TYPE: tl.constexpr = tl.float32 if EXACT else tl.bfloat16
    first_weight = digest.column_weight(tl.arange(0, PAIRS), PAIRS)
    SPANS: tl.constexpr = PAIRS // digest.SPAN
    changed = tl.zeros((1,), tl.int32)
    steps = tl.arange(0, REPEAT)
    sum_TR = tl.zeros((REPEAT, ROWS), tl.int64)  # of all rows, which are weighted at once
    for step in range(REPEAT):
        rows = start + step * ROWS + tl.arange(0, ROWS)
        valid = rows < count
        at = source + rows[:, None] * row_stride
        scale, factor = tl.zeros((ROWS,), tl.float32), tl.zeros((ROWS,), tl.float32)
        if CODED:
            sent = tl.load(entry + WHOLE).to(tl.pointer_type(tl.int8)) + L
            scale = _sent_scale(sent + rows * row_stride, valid)
            tl.store(scale_address + rows, scale, mask=valid)
            spoilt = elements.spoilt(scale, KIND)
        elif KIND != "copy":
            if L > 0:
                whole = tl.load(entry + WHOLE).to(tl.pointer_type(SOURCE_TYPE))
                if ALIGNED:
                    whole = tl.multiple_of(whole, 16)
                absmax = _largest(whole + rows[:, None] * row_stride, column_stride, valid, L, WIDTH, ROWS, READ_TYPE)
            else:
                absmax = _largest(at, column_stride, valid, K, WIDTH, ROWS, READ_TYPE)
            if KIND == "fp8_tensor":
                scale = tl.load(scale_address + rows * 0, mask=valid, other=1.0)
                tl.store(scale_address + rows, scale, mask=valid)
            else:
                _report(absmax, entry, at, column_stride, valid, K, WIDTH, READ_TYPE)
            if KIND == "int8_given":
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
        if start + step * ROWS < count:  # a branch, or the compiler draws loads up here and runs out of registers
            if RECEIPT:  # were they known to be alike in each row, they would be kept as 64 bits each, all of them
                zero = tl.load(entry + ZERO, volatile=True).to(tl.int32)
                # long rows have no registers left for the first weights
                weight = digest.column_weight(tl.arange(0, PAIRS) + zero, PAIRS) if WIDTH > 512 else first_weight + zero
            for first in tl.static_range(0, K, WIDTH):
                part = loaded(at, column_stride, valid, first + columns, K, "evict_first")
                value, bits = elements.converted(part, scale, factor, KIND, TARGET_TYPE)
                if KIND == "copy":
                    top = tl.maximum(top, tl.abs(elements.as_float(value)), propagate_nan=tl.PropagateNan.ALL)
                if KIND == "fp8_codes":
                    top = tl.maximum(top, ((value & 0x7F) == 0x7F).to(tl.float32))
                _store(to, value, valid, first + columns, K)
                if RECEIPT:
                    sums += digest.weighted(digest.pairs_of(bits, SIZE, ROWS, WIDTH), weight)
                    weight *= digest.span_power(SPANS)
        if KIND == "copy":
            _report(tl.max(elements.magnitude(top), 1), entry, at, column_stride, valid, K, WIDTH, TARGET_TYPE)
        if CODED:
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
    """fp8 with a scale a 128x128 block: one program a block."""
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
    """The largest magnitude of each tensor into its first scale, as the bits of a float32 (which must be 0 first).

    It looks at the whole tensor, so it counts what is not finite.
    """
    tile = tl.program_id(0)
    piece = digest.find(starts, pieces, tile)
    entry = table + piece * ENTRY
    rows = (tile - tl.load(starts + piece)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < tl.load(entry + ROWS_OF)
    source, _, row_stride, _, column_stride = places(entry, SOURCE_TYPE, tl.int8, ALIGNED)
    at = source + rows[:, None] * row_stride
    top = _largest(at, column_stride, valid, K, WIDTH, ROWS, tl.bfloat16)
    _report(top, entry, at, column_stride, valid, K, WIDTH, tl.bfloat16)
    tl.atomic_max(tl.load(entry + SCALE).to(tl.pointer_type(tl.int32)), tl.max(top, 0), sem="relaxed")


@triton.jit(do_not_specialize=["pieces"])
def tops_to_scales(table, starts, pieces, totals, CLEAR: tl.constexpr):
    """Turn the largest magnitudes that `find_tops` left into scales; or clear their places for it."""
    at = tl.load(table + tl.program_id(0) * ENTRY + SCALE).to(tl.pointer_type(tl.float32))
    if CLEAR:
        tl.store(at, 0.0)
    else:
        tl.store(at, elements.scale_of(tl.load(at).to(tl.int32, bitcast=True), "fp8"))


@triton.jit
def places(entry, SOURCE_TYPE: tl.constexpr, TARGET_TYPE: tl.constexpr, ALIGNED: tl.constexpr):
    """Addresses and strides of an entry's source and target; aligned ones are read and written 16 bytes at a time."""
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
def _sum_of_block(codes, left, K: tl.constexpr):
    """int64 (BLOCK): the rows' sums of a block of bytes from column `left` on."""
    pairs = left // 2 + tl.arange(0, BLOCK // 2)
    weight = digest.column_weight(pairs, K // 2 + BLOCK)
    return tl.sum(digest.weighted(digest.pairs_of(codes, 1, BLOCK, BLOCK), weight), 1)


@triton.jit
def _sum_of_scale(scale, column, COLUMNS: tl.constexpr):
    """int64 (1): the sum of one float32 in a row of them."""
    pairs = digest.pairs_of(tl.full((1, 1), 0, tl.int32) + scale.to(tl.int32, bitcast=True), 4, 1, 1)
    return tl.sum(digest.weighted(pairs, digest.column_weight(column * 2 + tl.arange(0, 2), COLUMNS * 2)), 1)


@triton.jit
def loaded(at, column_stride, valid, columns, K: tl.constexpr, AGAIN: tl.constexpr):
    """Elements of some rows; AGAIN is "evict_last" where they will be read once more, so that the cache keeps them."""
    inside = valid[:, None] & (columns < K)[None, :]
    return tl.load(at + columns[None, :] * column_stride, mask=inside, other=0.0, eviction_policy=AGAIN)


@triton.jit
def _largest(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Each row's largest magnitude as TYPE, as the bits of a float32."""
    top = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.static_range(0, K, WIDTH):
        part = loaded(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_last")
        values = elements.as_float(part) if tl.float32 == TYPE else elements.rounded(part)
        top = tl.maximum(top, tl.abs(values), propagate_nan=tl.PropagateNan.ALL)
    return tl.max(elements.magnitude(top), 1)


@triton.jit
def _report(absmax, entry, at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """Count what is not finite as TYPE, if a row's largest magnitude says that there is something."""
    if tl.max(absmax, 0) >= INF_BITS:
        counter = tl.load(entry + BAD).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, _bad(at, column_stride, valid, K, WIDTH, TYPE), sem="relaxed")


@triton.jit
def _bad(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """Count elements that are NaN or Inf as TYPE; at least 1, for one that is elsewhere in the whole row."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = loaded(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_first")
        magnitude = elements.magnitude(elements.as_float(elements.cast(part, TYPE)))
        count += tl.sum(tl.sum((magnitude >= INF_BITS).to(tl.int64), 1), 0)
    return tl.max(tl.maximum(count, 1), 0)


@triton.jit
def _sent_scale(at, valid):
    """The float32 whose bytes begin at these addresses, which need not be multiples of 4; 0 for rows that are none."""
    bits = tl.zeros(valid.shape, tl.int32)
    for byte in tl.static_range(0, 4):
        bits |= (tl.load(at + byte, mask=valid, other=0).to(tl.int32) & 0xFF) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _changed(at, to, column_stride, rows, scale, factor, K: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Count the int8 codes of these rows that are about to change."""
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
    """Count the int8 codes of these rows that given scales clamp."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = loaded(at, column_stride, rows, first + tl.arange(0, WIDTH), K, "evict_first")
        count += tl.sum(tl.sum(elements.lost(part, scale[:, None]).to(tl.int64), 1), 0)
    return count


@triton.jit
def _store(to, values, valid, columns, K: tl.constexpr):
    tl.store(to + columns[None, :], values, mask=valid[:, None] & (columns < K)[None, :], cache_modifier=".cs")


@triton.jit
def account(totals, entry, tile, changed, low, high, SPREAD: tl.constexpr):
    """Add a program's findings to the refit's: changed codes, and the two sums of the rows' digest."""
    one = tl.arange(0, 1)
    at = totals + tile % SPREAD * TOTALS + one
    found = digest.times(digest.joined(low, high), tl.load(entry + WEIGHT))
    tl.atomic_add(at, changed.to(tl.int64), sem="relaxed")
    tl.atomic_add(at + 1, found & digest.LOW, sem="relaxed")
    tl.atomic_add(at + 2, found >> 32, sem="relaxed")
