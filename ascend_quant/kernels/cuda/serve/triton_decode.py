"""Triton kernels of decode attention (flash decoding) over an int8 KV cache; triton_decoder.py launches them.

The tiles of all sequences are divided into equal shares (`plan_shares`). For each sequence in its share, a program
stores a partial result (sums, largest score, sum of weights; `attend_shares`), and a second kernel merges the partial
results of each sequence (`merge_parts`). The partial result of share s and sequence b is stored at index s + b, which
is unique.

Up to eight query heads per key head multiply int8 codes directly (triton_decode_codes.py). With more, codes are
converted to BF16 (or FP16) in registers, which is exact. A key's scale multiplies its score, a value's scale its
weight.

Shape suffixes: B sequences, H query heads, G key/value heads, D head size.
"""

import triton
import triton.language as tl

from ascend_quant.kernels.cuda.serve.triton_decode_codes import query_halves, weights_of, with_codes

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit(do_not_specialize=["B"])
def plan_shares(
    lengths,
    first_tile,
    first_sequence,
    B,
    TILE: tl.constexpr,
    SEQUENCES: tl.constexpr,  # a power of two, at least B
):
    """Find the first tile and sequence of each share; one program per share."""
    share = tl.program_id(0)
    sequence = tl.arange(0, SEQUENCES)
    tokens = tl.maximum(tl.load(lengths + sequence, mask=sequence < B, other=0), 0)
    last = tl.cumsum((tokens + TILE - 1) // TILE, 0)
    each = tl.cdiv(tl.max(last, 0), tl.num_programs(0))
    passed = tl.sum(((last <= share * each) & (sequence < B)).to(tl.int32), 0)
    tl.store(first_sequence + share, passed)
    if share == 0:
        tl.store(first_tile + 1 + sequence, last, mask=sequence < B)
        tl.store(first_tile, 0)


@triton.jit
def tile_at(
    cache,
    block,
    slot,
    key_head,
    column,
    HEADS: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """Return the addresses of a tile's keys (tokens, D), values (D, tokens) and key scales.

    Value scales are at the key scales' addresses plus the size of a page. The `multiple_of` and `max_contiguous` hints
    are needed because Triton cannot infer from the block table that sixteen adjacent tokens share a page.
    """
    place = key_head * PAGE + slot
    page_at = cache + block * (2 * PAGE * HEADS * (HEAD + 4))
    k_at = page_at[:, None] + (place * HEAD)[:, None] + column[None, :]
    first = place // TOGETHER * (HEAD * TOGETHER) + slot % TOGETHER
    v_at = page_at[None, :] + PAGE * HEADS * (HEAD + 4) + first[None, :] + (column * TOGETHER)[:, None]
    v_at = tl.max_contiguous(tl.multiple_of(v_at, (1, 16)), (1, 16))
    scale_at = (page_at + PAGE * HEADS * HEAD).to(tl.pointer_type(tl.float32)) + place
    return k_at, v_at, tl.max_contiguous(tl.multiple_of(scale_at, 64), 16)


@triton.jit
def with_tile(queries, k, v_t, k_scale, v_scale, seen, top, weights, sums):
    """Add a tile of keys to the online softmax: largest scores, sums of weights, and weighted values (ROWS, D).

    Args:
        seen: (ROWS or 1, TILE), mask of the tokens that a row attends to.
    """
    scores = tl.dot(queries, tl.trans(k).to(queries.dtype)) * k_scale[None, :]
    p, larger, shrink = weights_of(scores, seen, top)
    scaled = (p * v_scale[None, :]).to(queries.dtype)
    return (
        larger,
        weights * shrink + tl.sum(p, 1),
        tl.dot(scaled, tl.trans(v_t).to(queries.dtype), sums * shrink[:, None]),
    )


@triton.jit(do_not_specialize=["B", "table_stride"])
def attend_shares(
    q,
    cache,
    block_table,
    lengths,
    first_tile,
    first_sequence,
    part_sums,  # float32 (places, H, D)
    part_tops,  # float32 (places, H): the largest score, times log2(e)
    part_weights,  # float32 (places, H)
    B,
    q_stride,
    table_stride,
    softmax_scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    TOGETHER: tl.constexpr,  # see cache_pages.Layout
    TILE: tl.constexpr,
    ROWS: tl.constexpr,  # query rows, of which GROUP are used
    STAGES: tl.constexpr,
    CODES: tl.constexpr,
):
    """Attend to a share of the tiles; one program per share and key head."""
    key_head, share = tl.program_id(0), tl.program_id(1)
    VALUES: tl.constexpr = PAGE * HEADS * (HEAD + 4)
    each = tl.cdiv(tl.load(first_tile + B), tl.num_programs(1))
    at = share * each
    end = tl.minimum(at + each, tl.load(first_tile + B))
    sequence = tl.load(first_sequence + share)
    row, column, token = tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)
    while at < end:
        begin, stop = tl.load(first_tile + sequence), tl.load(first_tile + sequence + 1)
        length = tl.load(lengths + sequence)
        pages = tl.cdiv(length, PAGE)
        heads = key_head * GROUP + row
        q_at = q + sequence.to(tl.int64) * q_stride + heads[:, None] * HEAD + column[None, :]
        queries = tl.load(q_at, mask=(row < GROUP)[:, None], other=0.0)
        if CODES:
            queries, q_scale = query_halves(queries.to(tl.float32), HEAD)
        table = block_table + sequence.to(tl.int64) * table_stride
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        weights = tl.zeros((ROWS, TILE) if CODES else (ROWS,), tl.float32)
        sums = tl.zeros((ROWS, HEAD), tl.float32)
        here = tl.minimum(end, stop)
        next_block = tl.load(table + (at - begin) * TILE // PAGE)
        for step in tl.range(at - begin, here - begin, num_stages=STAGES):
            position = step * TILE + token
            if PAGE % TILE == 0:  # a tile lies in one page, whose number was loaded one step earlier
                block = next_block.to(tl.int64) + tl.zeros((TILE,), tl.int64)
                next_block = tl.load(table + tl.minimum((step + 1) * TILE // PAGE, pages - 1))
            else:
                block = tl.load(table + position // PAGE, mask=position // PAGE < pages, other=0).to(tl.int64)
            k_at, v_at, scale_at = tile_at(cache, block, position % PAGE, key_head, column, HEADS, HEAD, PAGE, TOGETHER)
            k, v_t = tl.load(k_at), tl.load(v_at)
            k_scale = tl.load(scale_at) * (softmax_scale * LOG2E)
            v_scale = tl.where(position < length, tl.load(scale_at + VALUES // 4), 0.0)
            seen = (position < length)[None, :]
            if CODES:
                top, weights, sums = with_codes(
                    queries, q_scale, k, v_t, k_scale, v_scale, seen, top, weights, sums, TILE, HEAD
                )
            else:
                top, weights, sums = with_tile(queries, k, v_t, k_scale, v_scale, seen, top, weights, sums)
        to = (share + sequence).to(tl.int64) * (HEADS * GROUP) + heads
        tl.store(part_sums + to[:, None] * HEAD + column[None, :], sums, mask=(row < GROUP)[:, None])
        tl.store(part_tops + to, top, mask=row < GROUP)
        tl.store(part_weights + to, tl.sum(weights, 1) if CODES else weights, mask=row < GROUP)
        at = here
        sequence += 1
        while (sequence < B) & (tl.load(first_tile + tl.minimum(sequence + 1, B)) <= at):
            sequence += 1


@triton.jit(do_not_specialize=["B", "shares"])
def merge_parts(
    out,
    first_tile,
    part_sums,
    part_tops,
    part_weights,
    B,
    shares,
    out_stride,
    H: tl.constexpr,
    HEAD: tl.constexpr,
):
    """Merge the partial results of a sequence and query head, one program each; sequences without tokens get zeros."""
    sequence, head = tl.program_id(0), tl.program_id(1)
    column = tl.arange(0, HEAD)
    each = tl.maximum(tl.cdiv(tl.load(first_tile + B), shares), 1)
    begin, stop = tl.load(first_tile + sequence), tl.load(first_tile + sequence + 1)
    top = tl.full((), float("-inf"), tl.float32)
    weights = tl.full((), 0.0, tl.float32)
    sums = tl.zeros((HEAD,), tl.float32)
    if stop > begin:
        for share in range(begin // each, (stop - 1) // each + 1):
            at = (share + sequence).to(tl.int64) * H + head
            its_top = tl.load(part_tops + at)
            larger = tl.maximum(top, its_top, propagate_nan=tl.PropagateNan.ALL)
            shrink, its = tl.exp2(top - larger), tl.exp2(its_top - larger)
            weights = weights * shrink + tl.load(part_weights + at) * its
            sums = sums * shrink + tl.load(part_sums + at * HEAD + column) * its
            top = larger
        sums = sums / weights
    to = out + sequence.to(tl.int64) * out_stride + head * HEAD + column
    tl.store(to, sums.to(out.dtype.element_ty))
