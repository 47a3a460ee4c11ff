"""Triton kernels that stand before a mixture of experts: tokens become codes, and their pairs are sorted by expert.

A pair is (token, one of its experts); its number is token * TOP + slot. The pairs of each expert fill blocks of BLOCK_M
places; what is left of an expert's last block holds the number of pairs, which is none. A block has one expert, or -1
where there are fewer blocks than there might be: how many there might be depends on the number of tokens alone, so that
a captured graph serves every routing.

Sorting needs no program to wait for another: the program of an expert and a segment of the pairs knows how many pairs
of each expert there are, and so its place. Few pairs are one segment, whose programs all count them; more are counted
first, in a launch of their own.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve.triton_tokens import quantize_rows
from ascend_quant.kernels.cuda.triton_early import call_next_and_wait

LONGEST_SEGMENT, SHORTEST_SEGMENT = 4096, 512  # pairs that a program looks at


def most_blocks(pairs: int, experts: int, block_m: int) -> int:
    """Return the most blocks that the pairs may fill: each expert with a pair begins one, the rest fills others."""
    reached = min(pairs, experts)
    return reached + (pairs - reached) // block_m


def segment_of(pairs: int) -> int:
    """Return how many pairs a program looks at: a power of two."""
    return min(max(triton.next_power_of_2(pairs), SHORTEST_SEGMENT), LONGEST_SEGMENT)


@triton.jit(do_not_specialize=["pairs"])
def count(
    expert_at,
    local,
    counts,
    pairs,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    GLOBAL: tl.constexpr,
    SEGMENT: tl.constexpr,
    PDL: tl.constexpr,
):
    """counts (segments, BINS), int32: how many pairs of each segment each expert has; arguments as in `prepare`."""
    call_next_and_wait(PDL)
    segment = tl.program_id(0)
    pair = segment * SEGMENT + tl.arange(0, SEGMENT)
    expert = expert_of_pair(expert_at, local, pair, pairs, EXPERTS, GLOBAL)
    tl.store(counts + segment * BINS + tl.arange(0, BINS), tl.histogram(expert, BINS, mask=expert >= 0))


@triton.jit(do_not_specialize=["tokens", "blocks", "segments"])
def prepare(
    x,
    x_codes,
    x_scale,
    expert_at,
    local,
    counts,
    pair_at,
    expert_of,
    stride,
    tokens,
    blocks,
    segments,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    TOP: tl.constexpr,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,  # a power of two that holds them
    GLOBAL: tl.constexpr,  # length of `local`, or 0 where there is none
    BLOCK_M: tl.constexpr,
    SEGMENT: tl.constexpr,
    COUNTED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Programs (i, 0) sort the pairs of a segment for expert i % EXPERTS, programs (i, 1) make the codes of token i.

    Args:
        expert_at: (tokens, TOP), the experts of each token.
        local: int32 (GLOBAL), the index into EXPERTS of each of the model's, -1 for those of other ranks.
        counts: of `count`, where COUNTED; else there is one segment.
        pair_at: int32 (blocks, BLOCK_M), the pair in each place.
        expert_of: int32 (blocks + 1), each block's expert, then how many blocks have one.
        stride: between the rows of x.
        blocks: `most_blocks`.
    """
    call_next_and_wait(PDL)
    program = tl.program_id(0)
    if tl.program_id(1) == 0:
        if program < EXPERTS * segments:
            pair = program // EXPERTS * SEGMENT + tl.arange(0, SEGMENT)
            found = expert_of_pair(expert_at, local, pair, tokens * TOP, EXPERTS, GLOBAL)
            _sort(
                pair, found, program % EXPERTS, program // EXPERTS, counts, pair_at, expert_of, tokens * TOP, blocks,
                segments, EXPERTS, BINS, BLOCK_M, COUNTED,
            )  # fmt: skip
    elif program < tokens:
        quantize_rows(x, x_codes, x_scale, stride, K, WIDTH)  # the row of its program


@triton.jit
def _sort(
    pair,
    found,
    expert,
    segment,
    counts,
    pair_at,
    expert_of,
    pairs,
    blocks,
    segments,
    EXPERTS: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    COUNTED: tl.constexpr,
):
    """Put one expert's pairs of a segment in their places; the first segment's program fills the rest of its tables."""
    bins = tl.arange(0, BINS)
    before = tl.zeros((BINS,), tl.int32)
    if COUNTED:
        whole = tl.zeros((BINS,), tl.int32)
        for other in tl.range(0, segments):
            there = tl.load(counts + other * BINS + bins)
            whole += there
            before += tl.where(other < segment, there, 0)
    else:
        whole = tl.histogram(found, BINS, mask=found >= 0)
    filled = (whole + BLOCK_M - 1) // BLOCK_M
    first_block = tl.sum(tl.where(bins < expert, filled, 0))
    place = first_block * BLOCK_M + tl.sum(tl.where(bins == expert, before, 0))
    mine = found == expert
    tl.store(pair_at + place + tl.cumsum(mine.to(tl.int32), 0) - 1, pair, mask=mine)
    if segment == 0:
        last_block = first_block + tl.sum(tl.where(bins == expert, filled, 0))
        behind = first_block * BLOCK_M + tl.sum(tl.where(bins == expert, whole, 0)) + tl.arange(0, BLOCK_M)
        tl.store(pair_at + behind, tl.full((BLOCK_M,), 0, tl.int32) + pairs, mask=behind < last_block * BLOCK_M)
        for block in tl.range(first_block, last_block):
            tl.store(expert_of + block, expert)
        if expert == 0:
            total = tl.sum(filled)
            tl.store(expert_of + blocks, total)
            for first in tl.range(total, blocks, BINS):
                tl.store(expert_of + first + bins, -1, mask=first + bins < blocks)


@triton.jit
def expert_of_pair(expert_at, local, pair, pairs, EXPERTS: tl.constexpr, GLOBAL: tl.constexpr):
    """int32: the expert here that a pair is for; -1 where it is not here, or where there is no such pair."""
    expert = tl.load(expert_at + pair, mask=pair < pairs, other=-1).to(tl.int32)
    if GLOBAL > 0:
        expert = tl.load(local + expert, mask=(expert >= 0) & (expert < GLOBAL), other=-1)
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, -1)
