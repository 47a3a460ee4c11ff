"""Attention to a tile of an int8 KV cache by integer products, in Triton: no code is converted.

Queries, and a tile's weights times its value scales, are rounded to 16-bit integers, which is finer than BF16. A 16-bit
integer is n = 256 * high + low with int8 high and low, so two int8 products replace one. A tensor core multiplies 16
rows, and up to 8 query heads share a key head: row r contains the high bytes of a query, row r + 8 its low bytes, and
both products are held by the same thread. Sums of products are exact in int32.

Shape suffixes: R query heads (8, padded), T tokens of a tile, D head size.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda.triton_elements import MAGIC, MAGIC_BITS

HEADS = 8  # query heads per key head, at most
LARGEST = tl.constexpr(32512)  # 127 * 256: the largest integer whose upper byte is an int8
TINY = tl.constexpr(1e-30)  # smaller rows are treated as zero
TINY_BITS = tl.constexpr(0x0DA24260)  # TINY as bits


@triton.jit
def whole_in_halves(whole, N: tl.constexpr):
    """Return int8 (16, N): the high bytes of integers (R, N) up to LARGEST, and their low bytes 8 rows below."""
    twice = tl.reshape(tl.broadcast_to(whole.to(tl.int16)[None, :, :], 2, 8, N), 16, N).to(tl.int32)
    upper = (tl.arange(0, 16) < 8)[:, None]
    return tl.where(upper, (twice + 128) >> 8, twice).to(tl.int8)  # the low byte as it is, signed


@triton.jit
def rounded(values):
    """Round floats below 2**22 to int32, to nearest even."""
    return (values + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def query_halves(values_RN, N: tl.constexpr):
    """Return int8 (16, N), the bytes of the scaled values, and the scales (R)."""
    total = tl.sum(tl.abs(values_RN), 1)  # unlike max, a sum propagates NaN
    largest = tl.where(total < float("inf"), tl.maximum(tl.max(tl.abs(values_RN), 1), TINY), total)
    scale = largest * (1 / LARGEST)
    return whole_in_halves(rounded(values_RN * (1.0 / scale)[:, None]), N), scale


@triton.jit
def whole_of(products, N: tl.constexpr):
    """Return float32 (R, N) from int32 products (16, N) of high and low bytes."""
    high, low = tl.split(tl.permute(tl.reshape(products, 2, 8, N), 1, 2, 0))
    return ((high << 8) + low).to(tl.float32)


@triton.jit
def with_codes(
    queries, q_scale, k, v_t, k_scale, v_scale, seen, top, weights, sums, TILE: tl.constexpr, HEAD: tl.constexpr
):
    """Add a tile of keys: return largest scores (R), weights (R, T) to be summed, and weighted values (R, D).

    Weights are at most 1, so the tile's largest value scale bounds all products, and one factor serves the tile.

    Args:
        queries, q_scale: the results of `query_halves`.
        k, v_t: int8 (T, D) and (D, T), with scales (T).
        seen: (1, T), mask of the tokens that are attended to.
    """
    scores = whole_of(tl.dot(queries, tl.trans(k), out_dtype=tl.int32), TILE) * q_scale[:, None] * k_scale[None, :]
    p, larger, shrink = weights_of(scores, seen, top)
    bits = tl.max(v_scale.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)  # as an integer, NaN is the largest
    p_scale = tl.maximum(bits, TINY_BITS).to(tl.float32, bitcast=True) * (1 / LARGEST)
    scaled = whole_in_halves(rounded(p * (v_scale * (1.0 / p_scale))[None, :]), TILE)
    added = whole_of(tl.dot(scaled, tl.trans(v_t), out_dtype=tl.int32), HEAD) * p_scale
    return larger, weights * shrink[:, None] + p, sums * shrink[:, None] + added


@triton.jit
def weights_of(scores, seen, top):
    """Take one online softmax step: return the tile's weights, the largest scores, and the factor on previous sums."""
    scores = tl.where(seen, scores, float("-inf"))
    larger = tl.maximum(top, tl.max(scores, 1))
    return tl.exp2(scores - larger[:, None]), larger, tl.exp2(top - larger)
