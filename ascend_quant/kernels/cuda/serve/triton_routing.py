"""Triton kernels that run before a mixture of experts: they quantize tokens, and sort their pairs by expert.

A pair consists of a token and one of its experts; its index is token * TOP + slot. The pairs of each expert fill blocks
of BLOCK_M entries; the last block of an expert is padded with the number of pairs, which is no valid index. A block has
one expert, or -1 if it is not needed: the number of blocks depends only on the number of tokens, so that a captured
graph serves every routing.

Programs sort without waiting for each other: each handles one expert and one segment of the pairs, and derives its
position from the numbers of pairs per expert. A small number of pairs is one segment, which every program counts
itself; more pairs are counted by a separate launch.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve.triton_tokens import quantize_rows
from ascend_quant.kernels.cuda.triton_early import call_next_and_wait

LONGEST_SEGMENT, SHORTEST_SEGMENT = 4096, 512  # pairs per program


def most_blocks(pairs: int, experts: int, block_m: int) -> int:
    """Return the largest number of blocks that the pairs may need, whatever the routing."""
    reached = min(pairs, experts)
    return reached + (pairs - reached) // block_m


def segment_of(pairs: int) -> int:
    """Return how many pairs a program processes: a power of two."""
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
    """Compute counts (segments, BINS), int32: pairs per segment and expert; the arguments are those of `prepare`."""
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
    BINS: tl.constexpr,  # a power of two, at least the number of experts
    GLOBAL: tl.constexpr,  # length of `local`, or 0 without one
    BLOCK_M: tl.constexpr,
    SEGMENT: tl.constexpr,
    COUNTED: tl.constexpr,
    PDL: tl.constexpr,
):
    """Sort the pairs of a segment for expert i % EXPERTS in programs (i, 0); quantize token i in programs (i, 1).

    Args:
        expert_at: (tokens, TOP), the experts of each token.
        local: int32 (GLOBAL), maps each of the model's experts to its index on this rank, or to -1 on other ranks.
        counts: the result of `count`, if COUNTED; otherwise there is one segment.
        pair_at: int32 (blocks, BLOCK_M), the pairs of each block.
        expert_of: int32 (blocks + 1), each block's expert, then the number of blocks that have one.
        stride: distance between rows of x, in elements.
        blocks: the result of `most_blocks`.
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
        quantize_rows(x, x_codes, x_scale, stride, K, WIDTH)  # the row of this program


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
    """Write one expert's pairs of a segment to their blocks; the first segment's program also pads the blocks."""
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
    """Return int32: the local expert of a pair, or -1 if it is on another rank or the pair does not exist."""
    expert = tl.load(expert_at + pair, mask=pair < pairs, other=-1).to(tl.int32)
    if GLOBAL > 0:
        expert = tl.load(local + expert, mask=(expert >= 0) & (expert < GLOBAL), other=-1)
    return tl.where((expert >= 0) & (expert < EXPERTS), expert, -1)
