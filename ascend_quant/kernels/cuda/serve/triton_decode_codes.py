"""A tile of an int8 cache attended to by products of codes, in Triton: no code is ever converted.

A query is rounded to 16 bits, and so are a tile's weights times its values' scales: finer than BF16. An integer n of 16
bits is 256 high + low, both int8, so its products with codes are those of high and low. A tensor core multiplies 16
rows; up to 8 query heads share a head of keys, so row r has the upper bytes of one and row r + 8 its lower bytes, whose
products the same thread holds. Sums of products are exact in int32.

Shape suffixes: R query heads (8, those beyond the group of no use), T tokens of a tile, D numbers of a head.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda.triton_elements import MAGIC, MAGIC_BITS

HEADS = 8  # of queries for one head of keys, at most
LARGEST = tl.constexpr(32512)  # 127 * 256: the largest integer whose upper byte is an int8
TINY = tl.constexpr(1e-30)  # below it a row is zero
TINY_BITS = tl.constexpr(0x0DA24260)  # TINY's


@triton.jit
def whole_in_halves(whole, N: tl.constexpr):
    """int8 (16, N): integers (R, N) up to LARGEST, as upper bytes and, 8 rows below, lower ones."""
    twice = tl.reshape(tl.broadcast_to(whole.to(tl.int16)[None, :, :], 2, 8, N), 16, N).to(tl.int32)
    upper = (tl.arange(0, 16) < 8)[:, None]
    return tl.where(upper, (twice + 128) >> 8, twice).to(tl.int8)  # the lower byte as it is, signed


@triton.jit
def rounded(values):
    """int32: floats below 2 ** 22, to nearest, ties to even."""
    return (values + MAGIC).to(tl.int32, bitcast=True) - MAGIC_BITS


@triton.jit
def query_halves(values_RN, N: tl.constexpr):
    """int8 (16, N): values over their row's scale; and the scales (R)."""
    total = tl.sum(tl.abs(values_RN), 1)  # a largest value does not see NaN
    largest = tl.where(total < float("inf"), tl.maximum(tl.max(tl.abs(values_RN), 1), TINY), total)
    scale = largest * (1 / LARGEST)
    return whole_in_halves(rounded(values_RN * (1.0 / scale)[:, None]), N), scale


@triton.jit
def whole_of(products, N: tl.constexpr):
    """float32 (R, N): of int32 products (16, N) of upper and lower bytes."""
    high, low = tl.split(tl.permute(tl.reshape(products, 2, 8, N), 1, 2, 0))
    return ((high << 8) + low).to(tl.float32)


@triton.jit
def with_codes(
    queries, q_scale, k, v_t, k_scale, v_scale, seen, top, weights, sums, TILE: tl.constexpr, HEAD: tl.constexpr
):
    """Largest scores (R), weights (R, T), to be added up, and sums of weighted values (R, D), with a tile of keys more.

    Weights are at most 1: a tile's largest scale of values bounds all products with them, one factor serves a tile.

    Args:
        queries, q_scale: of `query_halves`.
        k, v_t: int8 (T, D) and (D, T), with scales (T).
        seen: (1, T), the tokens that are attended to.
    """
    scores = whole_of(tl.dot(queries, tl.trans(k), out_dtype=tl.int32), TILE) * q_scale[:, None] * k_scale[None, :]
    p, larger, shrink = weights_of(scores, seen, top)
    bits = tl.max(v_scale.to(tl.int32, bitcast=True) & 0x7FFFFFFF, 0)  # as integers, NaN is the largest
    p_scale = tl.maximum(bits, TINY_BITS).to(tl.float32, bitcast=True) * (1 / LARGEST)
    scaled = whole_in_halves(rounded(p * (v_scale * (1.0 / p_scale))[None, :]), TILE)
    added = whole_of(tl.dot(scaled, tl.trans(v_t), out_dtype=tl.int32), HEAD) * p_scale
    return larger, weights * shrink[:, None] + p, sums * shrink[:, None] + added


@triton.jit
def weights_of(scores, seen, top):
    """Take an online softmax step: return a tile's weights, the largest scores, and the factor on older sums."""
    scores = tl.where(seen, scores, float("-inf"))
    larger = tl.maximum(top, tl.max(scores, 1))
    return tl.exp2(scores - larger[:, None]), larger, tl.exp2(top - larger)
