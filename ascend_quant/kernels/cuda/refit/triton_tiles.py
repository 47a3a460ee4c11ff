"""A Triton kernel that quantizes to int4 directly into Marlin's tiles (see int4_layouts.py); each element is read once.

One program writes 64 rows by 128 columns: scales, codes, and the words of eight tiles. An element's row is n = 16j + 8h
+ q of its tile, its column 16t + 8i + 2l + o of the program's; it is nibble 2h + i + 4o of word 16q + 4l + j of tile t
(see `int4_layouts.tile_order`).
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.refit import triton_digest as digest
from ascend_quant.kernels.cuda.refit import triton_entries as entries
from ascend_quant.kernels.int4_layouts import TILE_K, TILE_N

BAD, FIRST_ROW, ROWS_OF, SCALE = (
    entries.BAD,
    entries.FIRST_ROW,
    entries.ROWS_OF,
    entries.SCALE,
)
ENTRY, INF_BITS = entries.ENTRY, elements.INF_BITS
ROWS, COLUMNS, TILES = tl.constexpr(TILE_N), tl.constexpr(128), tl.constexpr(128 // TILE_K)
WORDS = tl.constexpr(TILE_N * TILE_K // 8)


@triton.jit(do_not_specialize=["pieces"])
def write_tiles(
    table,
    starts,
    pieces,
    totals,
    SOURCE_TYPE: tl.constexpr,
    K: tl.constexpr,
    GROUP: tl.constexpr,
    ALIGNED: tl.constexpr,
    RECEIPT: tl.constexpr,
    SPREAD: tl.constexpr,
):
    across: tl.constexpr = (K + COLUMNS - 1) // COLUMNS
    tile = tl.program_id(0)
    piece = digest.find(starts, pieces, tile)
    entry = table + piece * ENTRY
    block = (tile - tl.load(starts + piece)).to(tl.int64)
    down, left = block // across * ROWS, block % across * COLUMNS
    source, words_at, row_stride, matrix_rows, column_stride = entries.places(entry, SOURCE_TYPE, tl.int32, ALIGNED)
    rows, columns = down + tl.arange(0, ROWS), left + tl.arange(0, COLUMNS)
    valid = rows < tl.load(entry + ROWS_OF)
    at = source + rows[:, None] * row_stride
    values = elements.rounded(entries.loaded(at, column_stride, valid, columns, K, "evict_first"))
    _report_tile(values, entry)

    grouped = tl.reshape(values, (ROWS, COLUMNS // GROUP, GROUP))
    scale_RG = elements.int4_scale(tl.max(tl.abs(grouped), 2))
    groups = left // GROUP + tl.arange(0, COLUMNS // GROUP)
    scale_at = tl.load(entry + SCALE).to(tl.pointer_type(tl.int16)) + rows[:, None] * (K // GROUP) + groups[None, :]
    scale_bits = (scale_RG.to(tl.int32, bitcast=True) >> 16).to(tl.int16)
    tl.store(scale_at, scale_bits, mask=(groups < K // GROUP)[None, :])
    codes = tl.reshape(elements.int4_code(grouped, scale_RG[:, :, None]), (ROWS, COLUMNS))

    if RECEIPT:
        sum_R = _sum_of_codes(codes, left.to(tl.int32), K) + 3 * _sum_of_scales(scale_bits, groups.to(tl.int32), K)

    words = _words(codes)
    first_row = tl.load(entry + FIRST_ROW) + down
    matrix, within = first_row // matrix_rows, first_row % matrix_rows
    tiles = left // 16 + tl.arange(0, TILES)
    word = tl.arange(0, WORDS)
    tiles_at = (matrix * (K // 16) + tiles[:, None]) * (matrix_rows * 2) + within // ROWS * WORDS + word[None, :]
    inside = (tiles < K // 16)[:, None] & (word >= 0)[None, :]
    if RECEIPT:
        first = inside & ((word < 16) & (word % 4 == 0))[None, :]  # words that contain the tile's first row
        old = tl.load(words_at + tiles_at, mask=first, other=0)
        changed = tl.sum(tl.where(first, _first_row_differs(old ^ words), 0))
        low, high = digest.weighted_rows(sum_R, first_row + tl.arange(0, ROWS))
        entries.account(totals, entry, tile, changed, low, high, SPREAD)
    tl.store(words_at + tiles_at, words, mask=inside)


@triton.jit
def _report_tile(values, entry):
    """Count non-finite elements."""
    bad = tl.sum((elements.magnitude(values) >= INF_BITS).to(tl.int64))
    if bad > 0:
        tl.atomic_add(tl.load(entry + BAD).to(tl.pointer_type(tl.int64)), bad, sem="relaxed")


@triton.jit
def _words(codes):
    """Return int32 (TILES, WORDS): eight codes + 8 each, packed in the order given at the top of the file."""
    nibbles = tl.reshape(codes + 8, (4, 2, 8, TILES, 2, 4, 2))  # j h q t i l o
    h = tl.arange(0, 2).reshape(1, 2, 1, 1, 1, 1, 1)
    i = tl.arange(0, 2).reshape(1, 1, 1, 1, 2, 1, 1)
    o = tl.arange(0, 2).reshape(1, 1, 1, 1, 1, 1, 2)
    shifted = nibbles << (4 * (2 * h + i + 4 * o))
    words = tl.sum(tl.sum(tl.sum(shifted, 6), 4), 1)  # j q t l: the nibbles do not overlap
    return tl.reshape(tl.permute(words, (2, 1, 3, 0)), (TILES, WORDS))


@triton.jit
def _first_row_differs(differing):
    """Count the nonzero nibbles of a word that belong to a tile's first row (h = 0)."""
    count = ((differing & 0xF) != 0).to(tl.int32) + ((differing & 0xF0) != 0).to(tl.int32)
    return count + ((differing & 0xF0000) != 0).to(tl.int32) + ((differing & 0xF00000) != 0).to(tl.int32)


@triton.jit
def _sum_of_codes(codes, left, K: tl.constexpr):
    """Return int64 (ROWS): the row sums of codes, as bytes, from column `left` on.

    The products are summed in int32, a third of a weight at a time: 3 + 11 bits, plus 8 for every second byte, plus 7
    for the columns.
    """
    columns = left + tl.arange(0, COLUMNS)
    weight, second = digest.column_weight(columns // 2, K), columns % 2 * 8
    low_R = tl.sum(codes * ((weight & 0x7FF) << second)[None, :], 1)
    middle_R = tl.sum(codes * (((weight >> 11) & 0x7FF) << second)[None, :], 1)
    high_R = tl.sum(codes * ((weight >> 22) << second)[None, :], 1)
    return low_R.to(tl.int64) + (middle_R.to(tl.int64) << 11) + (high_R.to(tl.int64) << 22)


@triton.jit
def _sum_of_scales(bits, groups, K: tl.constexpr):
    """Return int64 (ROWS): the row sums of two-byte elements in these columns."""
    pairs = digest.pairs_of(bits, 2, bits.shape[0], bits.shape[1])
    return tl.sum(digest.weighted(pairs, digest.column_weight(groups, K)), 1)
