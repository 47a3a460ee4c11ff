"""Prefill attention over an int8 KV cache, in Triton: several new tokens of a sequence attend to its cache.

This serves prompts whose beginning is already in the cache: from earlier chunks (chunked prefill), or as a prefix of
another request. The keys and values of the new tokens have been written before, and are read back from the cache like
the others. A program takes some tokens of one sequence and one query head, and loops over the sequence's tiles of keys.
"""

import torch
import triton
import triton.language as tl

from ascend_quant.kernels import cache_pages
from ascend_quant.kernels.cuda.serve.triton_decode import LOG2E, tile_at, with_tile

ROWS, TILE, WARPS, STAGES = 64, 64, 8, 3  # tokens of queries and of keys per tile


@triton.jit
def attend_chunks(
    q,
    cache,
    block_table,
    lengths,
    starts,
    out,
    q_stride,
    out_stride,
    table_stride,
    softmax_scale,
    HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD: tl.constexpr,
    PAGE: tl.constexpr,
    TOGETHER: tl.constexpr,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    WITH_FRESH: tl.constexpr,
):
    """Attend to an int8 KV cache (prefill); a program takes ROWS tokens of a sequence and one query head."""
    part, head, sequence = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    begin = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - begin
    length = tl.load(lengths + sequence)
    before = length - count
    if (part * ROWS < count) & ((before > 0) | WITH_FRESH):
        row, column, token = part * ROWS + tl.arange(0, ROWS), tl.arange(0, HEAD), tl.arange(0, TILE)
        valid = (row < count)[:, None]
        at = (begin + row).to(tl.int64)[:, None]
        queries = tl.load(q + at * q_stride + head * HEAD + column[None, :], mask=valid, other=0.0)
        table = block_table + sequence.to(tl.int64) * table_stride
        pages = tl.cdiv(length, PAGE)
        top = tl.full((ROWS,), float("-inf"), tl.float32)
        weights = tl.zeros((ROWS,), tl.float32)
        sums = tl.zeros((ROWS, HEAD), tl.float32)
        seen = tl.minimum(before + part * ROWS + ROWS, length)
        for step in tl.range(0, tl.cdiv(seen, TILE), num_stages=STAGES):
            position = step * TILE + token
            block = tl.load(table + position // PAGE, mask=position // PAGE < pages, other=0).to(tl.int64)
            k_at, v_at, scale_at = tile_at(
                cache, block, position % PAGE, head // GROUP, column, HEADS, HEAD, PAGE, TOGETHER
            )
            k, v_t = tl.load(k_at), tl.load(v_at)
            k_scale = tl.load(scale_at) * (softmax_scale * LOG2E)
            v_scale = tl.where(position < length, tl.load(scale_at + PAGE * HEADS * (HEAD + 4) // 4), 0.0)
            earlier = position[None, :] <= before + row[:, None]
            top, weights, sums = with_tile(queries, k, v_t, k_scale, v_scale, earlier, top, weights, sums)
        values = sums / weights[:, None]
        tl.store(out + at * out_stride + head * HEAD + column[None, :], values.to(out.dtype.element_ty), mask=valid)


def extend(
    q_MHD: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    lengths: torch.Tensor,
    starts: torch.Tensor,
    longest: int,
    softmax_scale: float,
    out_MHD: torch.Tensor,
    with_fresh: bool = True,
) -> torch.Tensor:
    """Compute causal attention of the last tokens of each sequence.

    Args:
        q_MHD: the new tokens of all sequences, BF16 or FP16; a token's heads are adjacent, as in `out_MHD`.
        cache: see `cache_pages`; it already contains the new tokens.
        lengths: int32 (B), including the new tokens.
        starts: int32 (B + 1), where each sequence's new tokens begin.
        longest: the largest number of new tokens in a sequence.
        with_fresh: also compute sequences that have only new tokens; otherwise their rows of `out_MHD` are left alone.
    """
    layout = cache_pages.layout_of(cache)
    heads = q_MHD.shape[1]
    if len(lengths) and longest:
        with torch.cuda.device_of(cache):
            attend_chunks[(triton.cdiv(longest, ROWS), heads, len(lengths))](
                q_MHD, cache, block_table, lengths, starts, out_MHD, q_MHD.stride(0), out_MHD.stride(0),
                block_table.stride(0), softmax_scale, **constants(layout, heads // layout.heads, with_fresh),
                num_warps=WARPS,
            )  # fmt: skip
    return out_MHD


def constants(layout: cache_pages.Layout, group: int, with_fresh: bool) -> dict[str, int | bool]:
    """Return the compile-time constants of `attend_chunks`."""
    sizes = {"HEADS": layout.heads, "GROUP": group, "HEAD": layout.head, "PAGE": layout.page}
    sizes["TOGETHER"] = layout.together
    return {**sizes, "TILE": TILE, "ROWS": ROWS, "STAGES": STAGES, "WITH_FRESH": with_fresh}
