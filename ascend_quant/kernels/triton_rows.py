"""Triton kernels that write many matrices in one launch, one program a few rows, each element read once.

A launch takes a table with one entry a matrix (`FIELDS` numbers) and the number of its first tile; a program finds
its matrix by bisection. What is the same for a whole launch (kind, K, dtypes, alignment) is compiled in.

The codes equal IEEE division. For BF16 values, `x / scale` is replaced by one multiplication with a reciprocal that is
nudged off every tie: see `_reciprocal`. Values that are taken as they are, in float32, are divided.
"""

import torch
import triton
import triton.language as tl

from ascend_quant import oracle
from ascend_quant.kernels import triton_digest as digest
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
INT8_MAX, FP8_MAX = tl.constexpr(oracle.INT8_MAX), tl.constexpr(oracle.FP8_MAX)
INT8_MIN = tl.constexpr(oracle.INT8_MIN)
TOTALS = tl.constexpr(Counters.TOTALS)
BLOCK = tl.constexpr(oracle.BLOCK)
INF_BITS = tl.constexpr(0x7F800000)
LARGEST_INT8_SCALE = tl.constexpr(oracle.largest_scale(torch.int8))
LARGEST_FP8_SCALE = tl.constexpr(oracle.largest_scale(torch.float8_e4m3fn))
MAGIC, MAGIC_BITS = tl.constexpr(12582912.0), tl.constexpr(0x4B400000)  # 1.5 * 2**23: adding it rounds half to even
FP8_MAGIC, FP8_MAGIC_BITS = tl.constexpr(16384.0), tl.constexpr(0x46800000)  # 2**14, whose last bit is 2**-9
FP8_NORMAL_BITS = tl.constexpr(0x3C800000)  # 2**-6
TINY = tl.constexpr(oracle.TINY)
CONVERTS = tl.constexpr(hasattr(tl, "target_info") and not triton.knobs.runtime.interpret)  # it knows no assembly
NUDGE_UP, NUDGE_DOWN = tl.constexpr(1 + 2.0**-20), tl.constexpr(1 - 2.0**-20)


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
    source, target, row_stride, target_stride, column_stride = _places(entry, SOURCE_TYPE, TARGET_TYPE, ALIGNED)
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
            spoilt = _spoilt(scale, KIND)
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
                if RECEIPT and tl.max(_lost(absmax.to(tl.float32, bitcast=True), scale).to(tl.int32), 0) > 0:
                    clamped = _clamped(at, column_stride, valid, scale, K, WIDTH)
                    tl.atomic_add(totals + tile % SPREAD * TOTALS + 3 + tl.arange(0, 1), clamped, sem="relaxed")
            elif KIND != "fp8_tensor":
                scale = _scale(absmax, KIND)
                tl.store(scale_address + rows, scale, mask=valid)
            if KIND == "int8":
                factor = _reciprocal(absmax, scale)

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
                part = _part(at, column_stride, valid, first + columns, K, "evict_first")
                value, bits = _converted(part, scale, factor, KIND, TARGET_TYPE)
                if KIND == "copy":
                    top = tl.maximum(top, tl.abs(_float(value)), propagate_nan=tl.PropagateNan.ALL)
                if KIND == "fp8_codes":
                    top = tl.maximum(top, ((value & 0x7F) == 0x7F).to(tl.float32))
                _store(to, value, valid, first + columns, K)
                if RECEIPT:
                    sums += digest.weighted(digest.pairs_of(bits, SIZE, ROWS, WIDTH), weight)
                    weight *= digest.span_power(SPANS)
        if KIND == "copy":
            _report(tl.max(_magnitude(top), 1), entry, at, column_stride, valid, K, WIDTH, TARGET_TYPE)
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
        _account(totals, entry, tile, changed, low, high, SPREAD)


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
    source, target, row_stride, target_stride, column_stride = _places(entry, SOURCE_TYPE, tl.int8, ALIGNED)
    part = _part(source + rows[:, None] * row_stride, column_stride, valid, columns, K, "evict_first")
    top = tl.max(tl.max(_magnitude(_rounded(part)), 1), 0)
    if top >= INF_BITS:
        bad = tl.sum(tl.sum((_magnitude(_rounded(part)) >= INF_BITS).to(tl.int64), 1), 0)
        tl.atomic_add(tl.load(entry + BAD).to(tl.pointer_type(tl.int64)), bad, sem="relaxed")
    scale = _scale(top, "fp8")
    first_row = tl.load(entry + FIRST_ROW)
    tl.store(tl.load(entry + SCALE).to(tl.pointer_type(tl.float32)) + block, scale)
    codes = _fp8(_rounded(part), scale)
    to = target + rows[:, None] * target_stride + columns[None, :]
    if RECEIPT:
        old = tl.load(to, mask=inside & ((first_row + rows) % SAMPLE == 0)[:, None], other=0)
        differs = inside & ((first_row + rows) % SAMPLE == 0)[:, None] & (old != codes)
        sum_R = _sum_of_block(codes, left.to(tl.int32), K)
        low, high = digest.weighted_rows(sum_R, first_row + rows)
        scale_sum = 3 * _sum_of_scale(scale, (left // BLOCK).to(tl.int32), across)
        scale_low, scale_high = digest.weighted_rows(scale_sum, first_row // BLOCK + down + tl.arange(0, 1))
        changed = tl.sum(tl.sum(differs.to(tl.int32), 1), 0)
        _account(totals, entry, tile, changed, low + scale_low, high + scale_high, SPREAD)
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
    source, _, row_stride, _, column_stride = _places(entry, SOURCE_TYPE, tl.int8, ALIGNED)
    at = source + rows[:, None] * row_stride
    top = _largest(at, column_stride, valid, K, WIDTH, ROWS, tl.bfloat16)
    _report(top, entry, at, column_stride, valid, K, WIDTH, tl.bfloat16)
    tl.atomic_max(tl.load(entry + SCALE).to(tl.pointer_type(tl.int32)), tl.max(top, 0), sem="relaxed")


@triton.jit(do_not_specialize=["pieces"])
def tops_to_scales(table, starts, pieces, totals, CLEAR: tl.constexpr):
    """Turn what `find_tops` left into scales; or clear their places for it."""
    at = tl.load(table + tl.program_id(0) * ENTRY + SCALE).to(tl.pointer_type(tl.float32))
    if CLEAR:
        tl.store(at, 0.0)
    else:
        tl.store(at, _scale(tl.load(at).to(tl.int32, bitcast=True), "fp8"))


@triton.jit
def _places(entry, SOURCE_TYPE: tl.constexpr, TARGET_TYPE: tl.constexpr, ALIGNED: tl.constexpr):
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
def _part(at, column_stride, valid, columns, K: tl.constexpr, AGAIN: tl.constexpr):
    """Elements of some rows; AGAIN is "evict_last" where they will be read once more, so that the cache keeps them."""
    inside = valid[:, None] & (columns < K)[None, :]
    return tl.load(at + columns[None, :] * column_stride, mask=inside, other=0.0, eviction_policy=AGAIN)


@triton.jit
def _magnitude(values):
    """|x| as the bits of a float32: as integers they compare like the values, with NaN above Inf above the rest."""
    return values.to(tl.int32, bitcast=True) & 0x7FFFFFFF


@triton.jit
def _largest(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, TYPE: tl.constexpr):
    """Each row's largest magnitude as TYPE, as the bits of a float32."""
    top = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.static_range(0, K, WIDTH):
        part = _part(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_last")
        values = _float(part) if tl.float32 == TYPE else _rounded(part)
        top = tl.maximum(top, tl.abs(values), propagate_nan=tl.PropagateNan.ALL)
    return tl.max(_magnitude(top), 1)


@triton.jit
def _report(absmax, entry, at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """Count what is not finite as TYPE, if a row's largest magnitude says that there is something."""
    if tl.max(absmax, 0) >= INF_BITS:
        counter = tl.load(entry + BAD).to(tl.pointer_type(tl.int64))
        tl.atomic_add(counter, _bad(at, column_stride, valid, K, WIDTH, TYPE), sem="relaxed")


@triton.jit
def _bad(at, column_stride, valid, K: tl.constexpr, WIDTH: tl.constexpr, TYPE: tl.constexpr):
    """How many elements are not finite as TYPE; at least 1, for one that is elsewhere in the whole row."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = _part(at, column_stride, valid, first + tl.arange(0, WIDTH), K, "evict_first")
        count += tl.sum(tl.sum((_magnitude(_float(_cast(part, TYPE))) >= INF_BITS).to(tl.int64), 1), 0)
    return tl.max(tl.maximum(count, 1), 0)


@triton.jit
def _float(part):
    """The same values as float32; in integers for BF16, whose denormals Triton's interpreter gets wrong."""
    if part.dtype == tl.bfloat16:
        return (part.to(tl.int16, bitcast=True).to(tl.int32) << 16).to(tl.float32, bitcast=True)
    else:
        return part.to(tl.float32)


@triton.jit
def _rounded(part):
    """float32 values rounded to BF16, half to even (the interpreter's own cast cuts off); NaN and Inf stay."""
    values = _float(part)
    if part.dtype != tl.bfloat16:
        bits = values.to(tl.int32, bitcast=True)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000
        values = tl.where((bits & 0x7FFFFFFF) > INF_BITS, bits, rounded).to(tl.float32, bitcast=True)
    return values


@triton.jit
def _scale(bits, KIND: tl.constexpr):
    """absmax / 127 (or 448) as float32, correctly rounded.

    The float64 product is off by less than 2**-52 of itself, and the quotient of a BF16 number (8 bits) by 127 or 448
    is never that close to the middle between two float32 numbers unless it is one of them.
    """
    if KIND == "int8_exact":  # of 24 bits
        exact = bits.to(tl.float32, bitcast=True)
        return tl.where(exact < TINY, 0.0, tl.div_rn(exact, tl.full(exact.shape, INT8_MAX * 1.0, tl.float32)))
    absmax = bits.to(tl.float32, bitcast=True).to(tl.float64)
    factor: tl.constexpr = 1.0 / INT8_MAX if KIND == "int8" else 1.0 / FP8_MAX
    return tl.where(absmax < TINY, 0.0, (absmax * factor).to(tl.float32))


@triton.jit
def _sent_scale(at, valid):
    """The float32 whose bytes begin at these addresses, which need not be multiples of 4; 0 for rows that are none."""
    bits = tl.zeros(valid.shape, tl.int32)
    for byte in tl.static_range(0, 4):
        bits |= (tl.load(at + byte, mask=valid, other=0).to(tl.int32) & 0xFF) << (8 * byte)
    return bits.to(tl.float32, bitcast=True)


@triton.jit
def _spoilt(scale, KIND: tl.constexpr):
    """1 for a sent scale that no quantization gives, see `oracle.spoilt_rows`; 0 for others."""
    largest: tl.constexpr = LARGEST_INT8_SCALE if KIND == "codes" else LARGEST_FP8_SCALE
    return ((scale < 0) | (scale > largest) | (_magnitude(scale) >= INF_BITS)).to(tl.int32)


@triton.jit
def _reciprocal(bits, scale):
    """A factor f with round(x * f) = round_half_even(fl(x / scale)) for every BF16 |x| <= absmax.

    127 x / absmax is a tie k + 1/2 only if absmax is 254 * 2**n, whose scale is a power of two and f exact, or if
    |x| = absmax / 2; every other x is at least 1/510 of itself away from one. For that x the correctly rounded
    quotient is 63.5 or more just if absmax / scale >= 127 - 2**-18, and f is moved to its side by 2**-20: more than
    all rounding errors, far less than 1/510.
    """
    wide = scale.to(tl.float64)
    up = bits.to(tl.float32, bitcast=True).to(tl.float64) - 127.0 * wide >= wide * -(2.0**-18)
    plain = tl.div_rn(1.0, scale)
    nudged = plain * tl.where(up, NUDGE_UP, NUDGE_DOWN)
    power_of_two = (scale.to(tl.int32, bitcast=True) & 0x7FFFFF) == 0
    return tl.where(scale == 0, 0.0, tl.where(power_of_two, plain, nudged))


@triton.jit
def _changed(at, to, column_stride, rows, scale, factor, K: tl.constexpr, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """How many codes of these rows are about to change."""
    count = tl.zeros((1,), tl.int32)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        columns = first + tl.arange(0, WIDTH)
        new, _ = _converted(_part(at, column_stride, rows, columns, K, "evict_first"), scale, factor, KIND, tl.int8)
        inside = rows[:, None] & (columns < K)[None, :]
        old = tl.load(to + columns[None, :], mask=inside, other=0)
        count += tl.sum(tl.sum((inside & (old != new)).to(tl.int32), 1), 0)
    return count


@triton.jit
def _clamped(at, column_stride, rows, scale, K: tl.constexpr, WIDTH: tl.constexpr):
    """How many codes of these rows are lost to given scales."""
    count = tl.zeros((1,), tl.int64)
    for first in tl.range(0, K, WIDTH, loop_unroll_factor=1):
        part = _part(at, column_stride, rows, first + tl.arange(0, WIDTH), K, "evict_first")
        count += tl.sum(tl.sum(_lost(part, scale[:, None]).to(tl.int64), 1), 0)
    return count


@triton.jit
def _store(to, values, valid, columns, K: tl.constexpr):
    tl.store(to + columns[None, :], values, mask=valid[:, None] & (columns < K)[None, :], cache_modifier=".cs")


@triton.jit
def _quotient(x, scale):
    """x / scale as IEEE has it, 0 where the scale is."""
    return tl.where(scale == 0, 0.0, tl.div_rn(x, tl.where(scale == 0, 1.0, scale)))


@triton.jit
def _outer_code(part, scale):
    """x / scale rounded half to even, int32; -129 or 128 for all that a code cannot hold."""
    ratio = tl.minimum(tl.maximum(_quotient(_float(part), scale), INT8_MIN - 1.0), INT8_MAX + 1.0)
    return (ratio + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def _lost(part, scale):
    """Whether a code cannot hold what a given scale makes of an element."""
    code = _outer_code(part, scale)
    return (code > INT8_MAX) | (code < INT8_MIN) | ((scale == 0) & (_float(part) != 0))


@triton.jit
def _fp8(x, scale):
    """float8_e4m3fn codes of BF16 values, as the int8 with their bits; `scale` broadcasts against x."""
    if CONVERTS and tl.target_info.cuda_capability_geq(8, 9):
        # one at a time: with pack=4 Triton 3.6 made other bytes of elements that are masked
        return tl.inline_asm_elementwise(
            "{ .reg .b16 code; cvt.rn.satfinite.e4m3x2.f32 code, 0f00000000, $1; cvt.u32.u16 $0, code; }",
            "=r,r",
            [_quotient_of_bf16(x, scale)],
            dtype=tl.int32,
            is_pure=True,
            pack=1,
        ).to(tl.int8)
    else:
        return _fp8_of_ratio(_quotient(x, scale))


@triton.jit
def _quotient_of_bf16(x, scale):
    """`_quotient` of BF16 values by a scale that `_scale` made of a BF16 number; no worse for `_fp8`, in fewer steps.

    A product with the rounded reciprocal is off by less than two units in the last place, and an fma gives what is
    left. The corrected quotient can be wrong only where the true one is next to the middle of two float32 numbers, and
    none beside a tie between two codes is: tests/unit/test_kernels_fp8.py tries all mantissas.
    """
    divisor = tl.where(scale == 0, 1.0, scale)
    reciprocal = tl.div_rn(1.0, divisor)
    quotient = x * reciprocal
    rest = tl.fma(quotient, divisor, x * -1.0)  # and not its negative: -0 stays -0. For Triton -x is 0 - x
    return tl.where(scale == 0, 0.0, tl.fma(rest, -reciprocal, quotient))


@triton.jit
def _fp8_of_ratio(ratio):
    """float32 as float8_e4m3fn, in integers, for GPUs without such an instruction and for the interpreter."""
    ratio = tl.minimum(tl.maximum(ratio, -FP8_MAX * 1.0), FP8_MAX * 1.0)
    bits = ratio.to(tl.int32, bitcast=True)
    magnitude = bits & 0x7FFFFFFF
    normal = ((magnitude + 0x7FFFF + ((magnitude >> 20) & 1)) >> 20) - ((127 - 7) << 3)
    denormal = (tl.abs(ratio) + FP8_MAGIC).to(tl.int32, bitcast=True) - FP8_MAGIC_BITS
    code = tl.where(magnitude < FP8_NORMAL_BITS, denormal, normal) | ((bits >> 24) & 0x80)
    return code.to(tl.int8)


@triton.jit
def _converted(part, scale, factor, KIND: tl.constexpr, TARGET_TYPE: tl.constexpr):
    """What is stored, and its bits as integers."""
    if KIND == "int8":
        bits = (_rounded(part) * factor[:, None] + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS
        value = bits.to(tl.int8)
    elif KIND == "int8_exact" or KIND == "int8_given":  # no larger than 127 with a scale of its own
        bits = tl.minimum(tl.maximum(_outer_code(part, scale[:, None]), INT8_MIN), INT8_MAX)
        value = bits.to(tl.int8)
    elif KIND == "codes" or KIND == "fp8_codes":
        value = part
        bits = value
    elif KIND == "copy":
        value = _cast(part, TARGET_TYPE)
        bits = _bits(value, TARGET_TYPE)
    else:
        value = _fp8(_rounded(part), scale[:, None])
        bits = value
    return value, bits


@triton.jit
def _cast(part, TYPE: tl.constexpr):
    """To another dtype; to and from BF16 in integers, see `_float` and `_rounded`."""
    if part.dtype == TYPE:
        return part
    elif tl.bfloat16 == TYPE:
        return (_rounded(part).to(tl.int32, bitcast=True) >> 16).to(tl.int16).to(tl.bfloat16, bitcast=True)
    else:
        return _float(part).to(TYPE)


@triton.jit
def _bits(value, TYPE: tl.constexpr):
    if TYPE.primitive_bitwidth == 32:
        return value.to(tl.int32, bitcast=True)
    elif TYPE.primitive_bitwidth == 16:
        return value.to(tl.int16, bitcast=True)
    else:
        return value.to(tl.int8, bitcast=True)


@triton.jit
def _account(totals, entry, tile, changed, low, high, SPREAD: tl.constexpr):
    """Add a program's findings to the refit's: changed codes, and the two sums of the rows' digest."""
    one = tl.arange(0, 1)
    at = totals + tile % SPREAD * TOTALS + one
    found = digest.times(digest.joined(low, high), tl.load(entry + WEIGHT))
    tl.atomic_add(at, changed.to(tl.int64), sem="relaxed")
    tl.atomic_add(at + 1, found & digest.LOW, sem="relaxed")
    tl.atomic_add(at + 2, found >> 32, sem="relaxed")
