"""The grouped GEMM of int8 experts (fused MoE) in Triton, over blocks of (token, expert) pairs; see triton_routing.py.

Sums over codes are exact in int32, and dequantized once in float32 as (sum * weight scale) * row scale. Weights are
read once if an expert's pairs fit one block. They are loaded before the activations, which have to wait for the pair
indices.

SWAP multiplies weights times tokens instead of tokens times weights: Hopper's wgmma then has 64 rows even if there are
few tokens.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda import triton_elements as elements
from ascend_quant.kernels.cuda.serve.triton_routing import expert_of_pair
from ascend_quant.kernels.cuda.triton_early import call_next_and_wait, wait

NEAR_A_TIE = tl.constexpr(0.5 - 2.0**-14)


@triton.jit(do_not_specialize=["pairs", "blocks"])
def gate_up(
    x_codes,
    x_scale,
    w13,
    w13_scale,
    h,
    pair_at,
    expert_of,
    pairs,
    blocks,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute h (pairs, WIDTH) = silu(gate) * up from token codes (tokens, K) and w13 (experts, 2 * WIDTH, K).

    A program computes BLOCK_N / 2 columns of h. Gate and up rows alternate in its tile, so that both of a column's sums
    are in the same thread.
    """
    block, tile = _block_and_tile(blocks, (2 * WIDTH + BLOCK_N - 1) // BLOCK_N, GROUP_M)
    lane = tl.arange(0, BLOCK_N)
    column_N = tile * (BLOCK_N // 2) + lane // 2
    row_N = lane % 2 * WIDTH + column_N
    wait(PDL)
    expert = tl.load(expert_of + block)
    if expert < 0:
        return
    pair_M = tl.load(pair_at + block * BLOCK_M + tl.arange(0, BLOCK_M))
    first_row = expert.to(tl.int64) * (2 * WIDTH)
    sum_MN = _sums(
        x_codes, pair_M // TOP, pair_M < pairs, w13 + first_row * K, row_N, column_N < WIDTH,
        K, WIDTH % (BLOCK_N // 2) == 0, BLOCK_M, BLOCK_N, BLOCK_K, SWAP,
    )  # fmt: skip
    x_scale_M = tl.load(x_scale + pair_M // TOP, mask=pair_M < pairs, other=0.0)
    scale_N = tl.load(w13_scale + first_row + row_N, mask=column_N < WIDTH, other=0.0)
    product_MN = sum_MN.to(tl.float32) * scale_N[None, :] * x_scale_M[:, None]
    gate, up = tl.split(tl.reshape(product_MN, (BLOCK_M, BLOCK_N // 2, 2)))
    column = tile * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
    inside = (pair_M < pairs)[:, None] & (column < WIDTH)[None, :]
    at = h + pair_M.to(tl.int64)[:, None] * WIDTH + column[None, :]
    tl.store(at, (tl.div_rn(gate, 1.0 + tl.exp(-gate)) * up).to(h.dtype.element_ty), mask=inside)


@triton.jit
def quantize_pairs(h, codes, scales, K: tl.constexpr, STEP: tl.constexpr, PDL: tl.constexpr):
    """Quantize h (pairs, K) to codes and scales; one program per pair.

    Rows of pairs that belong to other ranks contain undefined values, and so do their codes. Elements are multiplied by
    the reciprocal of the scale. The error is below 2**-15, so the product rounds as the quotient does unless it is that
    close to a tie; then the row is divided.
    """
    call_next_and_wait(PDL)
    pair = tl.program_id(0).to(tl.int64) + tl.arange(0, 1)
    columns = tl.arange(0, STEP)
    top = tl.zeros((1, STEP), tl.int32)
    for first in tl.static_range(0, K, STEP):
        top = tl.maximum(top, elements.magnitude(_columns(h, pair, first + columns, K)))
    scale = elements.scale_of(tl.max(top, 1), "int8_float32")
    factor = tl.where(scale == 0, 0.0, tl.div_rn(tl.full((1,), 1.0, tl.float32), scale))
    nearest = tl.zeros((1, STEP), tl.float32)
    for first in tl.static_range(0, K, STEP):
        ratio = _columns(h, pair, first + columns, K) * factor[:, None]
        rounded = ratio + elements.MAGIC
        nearest = tl.maximum(nearest, tl.abs(ratio - (rounded - elements.MAGIC)))
        _put(codes, rounded, pair, first + columns, K)
    if tl.max(tl.max(nearest, 1), 0) > NEAR_A_TIE:
        for again in tl.range(0, K, STEP):
            exact = elements.quotient(_columns(h, pair, again + columns, K), scale[:, None])
            _put(codes, exact + elements.MAGIC, pair, again + columns, K)
    tl.store(scales + pair, scale)


@triton.jit
def _columns(h, pair, columns, K: tl.constexpr):
    return tl.load(h + pair[:, None] * K + columns[None, :], mask=(columns < K)[None, :], other=0.0)


@triton.jit
def _put(codes, rounded, pair, columns, K: tl.constexpr):
    code = (rounded.to(tl.int32, bitcast=True) - elements.MAGIC_BITS).to(tl.int8)
    tl.store(codes + pair[:, None] * K + columns[None, :], code, mask=(columns < K)[None, :])


@triton.jit(do_not_specialize=["pairs", "blocks"])
def down(
    h_codes,
    h_scale,
    w2,
    w2_scale,
    weight,
    parts,
    pair_at,
    expert_of,
    pairs,
    blocks,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SWAP: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute parts (pairs, N): routing weight times the product of h's codes (pairs, K) and w2 (experts, N, K)."""
    block, tile = _block_and_tile(blocks, (N + BLOCK_N - 1) // BLOCK_N, GROUP_M)
    expert = tl.load(expert_of + block)  # complete: the kernel that writes it ended before `gate_up` began
    first_row = expert.to(tl.int64) * N
    column_N = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    wait(PDL)
    if expert < 0:
        return
    pair_M = tl.load(pair_at + block * BLOCK_M + tl.arange(0, BLOCK_M))
    valid_M = pair_M < pairs
    sum_MN = _sums(
        h_codes, pair_M, valid_M, w2 + first_row * K, column_N, column_N < N,
        K, N % BLOCK_N == 0, BLOCK_M, BLOCK_N, BLOCK_K, SWAP,
    )  # fmt: skip
    h_scale_M = tl.load(h_scale + pair_M, mask=valid_M, other=0.0)
    weight_M = tl.load(weight + pair_M, mask=valid_M, other=0.0).to(tl.float32)
    scale_N = tl.load(w2_scale + first_row + column_N, mask=column_N < N, other=0.0)
    part_MN = sum_MN.to(tl.float32) * scale_N[None, :] * h_scale_M[:, None] * weight_M[:, None]
    at = parts + pair_M.to(tl.int64)[:, None] * N + column_N[None, :]
    tl.store(at, part_MN.to(parts.dtype.element_ty), mask=valid_M[:, None] & (column_N < N)[None, :])


@triton.jit(do_not_specialize=["tokens"])
def combine(
    parts,
    expert_at,
    local,
    out,
    tokens,
    N: tl.constexpr,
    TOP: tl.constexpr,
    EXPERTS: tl.constexpr,
    GLOBAL: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PDL: tl.constexpr,
):
    """Compute out (tokens, N): the float32 sum of each token's parts in slot order, rounded once."""
    call_next_and_wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_N,), tl.float32)
    for slot in tl.static_range(TOP):
        pair = token * TOP + slot
        here = expert_of_pair(expert_at, local, pair, tokens * TOP, EXPERTS, GLOBAL) >= 0
        total += tl.load(parts + pair * N + column, mask=here & (column < N), other=0.0).to(tl.float32)
    tl.store(out + token * N + column, total.to(out.dtype.element_ty), mask=column < N)


@triton.jit
def _block_and_tile(blocks, TILES: tl.constexpr, GROUP_M: tl.constexpr):
    """Return a program's block of pairs and tile of columns; GROUP_M blocks are adjacent."""
    program = tl.program_id(0)
    first = program // (GROUP_M * TILES) * GROUP_M
    at_once = tl.minimum(blocks - first, GROUP_M)
    within = program % (GROUP_M * TILES)
    return first + within % at_once, within // at_once


@triton.jit
def _sums(
    a,
    row_M,
    valid_M,
    w,
    row_N,
    inside_N,
    K: tl.constexpr,
    ALL_INSIDE: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SWAP: tl.constexpr,
):
    """Return int32 (BLOCK_M, BLOCK_N): rows of codes a (.., K) times rows of codes w (.., K)."""
    row_M = row_M.to(tl.int64)
    if SWAP:
        sum_NM = tl.zeros((BLOCK_N, BLOCK_M), tl.int32)
        for first in tl.range(0, K, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            w_NK = _part(w, row_N[:, None], inside_N[:, None], k[None, :], K, BLOCK_K, ALL_INSIDE, "evict_first")
            a_KM = _part(a, row_M[None, :], valid_M[None, :], k[:, None], K, BLOCK_K, False, "evict_last")
            sum_NM = tl.dot(w_NK, a_KM, sum_NM, out_dtype=tl.int32)
        return tl.trans(sum_NM)
    else:
        sum_MN = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
        for first in tl.range(0, K, BLOCK_K):
            k = first + tl.arange(0, BLOCK_K)
            w_KN = _part(w, row_N[None, :], inside_N[None, :], k[:, None], K, BLOCK_K, ALL_INSIDE, "evict_first")
            a_MK = _part(a, row_M[:, None], valid_M[:, None], k[None, :], K, BLOCK_K, False, "evict_last")
            sum_MN = tl.dot(a_MK, w_KN, sum_MN, out_dtype=tl.int32)
        return sum_MN


@triton.jit
def _part(codes, row, valid, k, K: tl.constexpr, BLOCK_K: tl.constexpr, ALL: tl.constexpr, POLICY: tl.constexpr):
    """Load a tile of codes: 0 beyond the last column, undefined in invalid rows, whose sums are discarded."""
    if K % BLOCK_K == 0:
        if ALL:
            return tl.load(codes + row * K + k, eviction_policy=POLICY)
        else:
            return tl.load(codes + row * K + k, mask=valid, eviction_policy=POLICY)
    else:
        return tl.load(codes + row * K + k, mask=valid & (k < K), other=0, eviction_policy=POLICY)
