"""Checksums in Triton: device functions for kernels that write weights, and a kernel that only reads.

Bytes are read in pairs, as 17-bit signed integers whose products with the column weights are accumulated in int64. Row
sums are multiplied by row weights modulo 2**61 - 1, and accumulated as low 32 bits and high bits.
"""

import triton
import triton.language as tl

from ascend_quant.oracle import fingerprint

DIGEST_FIELDS = 10
SOURCE, ROW_STRIDE, COLUMN_STRIDE, ROWS_OF, PAIRS, TARGET, FIRST_ROW, OFFSET, POWER = (
    tl.constexpr(i) for i in range(DIGEST_FIELDS - 1)
)
ENTRY = tl.constexpr(DIGEST_FIELDS)
PRIME, SPAN = tl.constexpr(fingerprint.PRIME), tl.constexpr(fingerprint.SPAN)
FACTOR, FIRST_MIXER, SECOND_MIXER, COLUMN_SEED, ROW_SEED, HIGH_SEED = (
    tl.constexpr((number + 2**31) % 2**32 - 2**31)  # as signed 32-bit integers
    for number in (
        fingerprint.SPAN_FACTOR,
        *fingerprint.MIXERS,
        fingerprint.COLUMN_SEED,
        fingerprint.ROW_SEED,
        fingerprint.HIGH_SEED,
    )
)
HIGH_MASK = tl.constexpr(2**fingerprint.HIGH_BITS - 1)
FIRST_WEIGHT, SECOND_WEIGHT = (tl.constexpr(weight) for weight in fingerprint.column_weights(0, 2).tolist())
LOW = tl.constexpr(2**32 - 1)


@triton.jit(do_not_specialize=["pieces"])
def digest_rows(
    table,
    starts,
    pieces,
    totals,
    WIDTH: tl.constexpr,  # pairs of bytes at a time
    ROWS: tl.constexpr,
    ALIGNED: tl.constexpr,  # addresses and row strides are multiples of 16 bytes, pairs adjacent, their number one of 8
):
    """Compute digests of int16 matrices, each added to two accumulators; the number of pairs is dynamic."""
    tile = tl.program_id(0)
    piece = find(starts, pieces, tile)
    entry = table + piece * ENTRY
    source = tl.load(entry + SOURCE).to(tl.pointer_type(tl.int16))
    row_stride, pairs = tl.load(entry + ROW_STRIDE), tl.load(entry + PAIRS)
    if ALIGNED:
        column_stride = 1
        source, row_stride, pairs = tl.multiple_of(source, 16), tl.multiple_of(row_stride, 8), tl.multiple_of(pairs, 8)
    else:
        column_stride = tl.load(entry + COLUMN_STRIDE)
    rows = (tile - tl.load(starts + piece)).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    valid = rows < tl.load(entry + ROWS_OF)
    at = source + rows[:, None] * row_stride
    columns = tl.arange(0, WIDTH)
    weight = column_weight(tl.load(entry + OFFSET).to(tl.int32) + columns, WIDTH) * tl.load(entry + POWER).to(tl.int32)
    sums = tl.zeros((ROWS, WIDTH), tl.int64)
    for first in range(0, pairs, WIDTH):
        inside = valid[:, None] & (first + columns < pairs)[None, :]
        part = tl.load(
            at + (first + columns)[None, :] * column_stride, mask=inside, other=0, eviction_policy="evict_first"
        )
        sums += weighted(_signed(part.to(tl.int32)), weight)
        weight *= span_power(WIDTH // SPAN)
    first_row = tl.load(entry + FIRST_ROW)
    low, high = weighted_rows(tl.sum(sums, 1), first_row + rows)
    place = tl.load(entry + TARGET).to(tl.pointer_type(tl.int64))
    one = tl.arange(0, 1)
    tl.atomic_add(place + one, low, sem="relaxed")
    tl.atomic_add(place + 1 + one, high, sem="relaxed")


@triton.jit
def find(starts, pieces, tile):
    """Find by bisection the piece that contains a tile: the last one whose first tile is not after it."""
    low = tile * 0
    high = low + pieces
    while high - low > 1:
        middle = (low + high) // 2
        before = tl.load(starts + middle) <= tile
        low = tl.where(before, middle, low)
        high = tl.where(before, high, middle)
    return low


@triton.jit
def pairs_of(bits, SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Return int32 (ROWS, pairs) from (ROWS, WIDTH) elements of SIZE bytes, sign-extended."""
    bits = bits.to(tl.int32)
    if SIZE == 1 and WIDTH == 1:
        return bits
    elif SIZE == 1:
        low, high = tl.split(tl.reshape(bits, (ROWS, WIDTH // 2, 2)))
        return low + high * 256
    elif SIZE == 2:
        return _signed(bits)
    else:
        return tl.reshape(tl.join(_signed((bits << 16) >> 16), _signed(bits >> 16)), (ROWS, WIDTH * 2))


@triton.jit
def _signed(pairs):
    """Return the lower byte, sign-extended to int32."""
    return (pairs ^ 0x80) - 0x80


@triton.jit
def column_weight(columns, COUNT: tl.constexpr):
    """Return the column weight a(k) of `oracle.digest`, int32, for k below COUNT + SPAN."""
    weight = _mixed(columns % SPAN + COLUMN_SEED)
    square = columns * 0 + FACTOR
    spans = columns // SPAN
    LEFT: tl.constexpr = COUNT // SPAN + 1
    for bit in tl.static_range(0, 16):
        if (LEFT >> bit) > 0:
            weight *= tl.where((spans >> bit) & 1 == 1, square, 1)
            square *= square
    return weight


@triton.jit
def span_power(SPANS: tl.constexpr):
    """Return the ratio between column weights this many spans apart, int32; folded to a constant."""
    power, square = tl.full((), 1, tl.int32), tl.full((), FACTOR, tl.int32)
    for bit in tl.static_range(0, 16):
        if (SPANS >> bit) > 0:
            if (SPANS >> bit) % 2 == 1:
                power *= square
            square *= square
    return power


@triton.jit
def weighted(pairs, weight):
    """Return int64: pairs (ROWS, COUNT) times column weights (COUNT)."""
    return pairs.to(tl.int64) * weight.to(tl.int64)[None, :]


@triton.jit
def scale_sum(scale):
    """Return int64: the sum of a row that is a float32 scale."""
    bits = scale.to(tl.int32, bitcast=True)
    low, high = _signed((bits << 16) >> 16).to(tl.int64), _signed(bits >> 16).to(tl.int64)
    return low * FIRST_WEIGHT + high * SECOND_WEIGHT


@triton.jit
def weighted_rows(sums, rows):
    """Return int64 row sums times row weights, as sums of the low 32 bits and of the high bits."""
    products = times(sums, _row_weight(rows))
    return tl.sum(products & LOW), tl.sum(products >> 32)


@triton.jit
def _row_weight(rows):
    """Return the row weight b(r) of `oracle.digest`, int64."""
    low = _mixed(rows.to(tl.int32) + ROW_SEED)
    high = _mixed(low + HIGH_SEED) & HIGH_MASK
    return (low.to(tl.int64) & LOW) | (high.to(tl.int64) << 32)


@triton.jit
def _mixed(numbers):
    """Apply `oracle.fingerprint.mixed` to int32."""
    numbers = (numbers ^ ((numbers >> 16) & 0xFFFF)) * FIRST_MIXER
    numbers = (numbers ^ ((numbers >> 15) & 0x1FFFF)) * SECOND_MIXER
    return numbers ^ ((numbers >> 16) & 0xFFFF)


@triton.jit
def times(numbers, weights):
    """Multiply int64 numbers by weights in [0, 2**61), modulo PRIME; the result is in [0, PRIME + 4)."""
    numbers = folded(numbers)
    numbers = tl.where(numbers < 0, numbers + PRIME, numbers)
    high, low = numbers >> 31, numbers & 0x7FFFFFFF
    weights_high, weights_low = weights >> 31, weights & 0x7FFFFFFF
    middle = high * weights_low + low * weights_high  # carries a factor of 2**31, and 2**61 is 1
    return folded(folded(low * weights_low) + 2 * high * weights_high + (middle >> 30) + ((middle & 0x3FFFFFFF) << 31))


@triton.jit
def joined(low, high):
    """Join sums of low 32 bits and of high bits into one number modulo PRIME, in [0, PRIME + 4)."""
    return folded(low + (high >> 29) + ((high & 0x1FFFFFFF) << 32))


@triton.jit
def folded(numbers):
    """Reduce int64 numbers modulo PRIME, into [-4, PRIME + 4)."""
    return (numbers & PRIME) + (numbers >> 61)
