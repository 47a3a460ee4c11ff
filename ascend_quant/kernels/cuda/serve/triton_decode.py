"""Decode attention (flash decoding) over an int8 KV cache, in Triton: all sequences' tiles in equal shares.

The tiles of all sequences, one behind the other, are cut into as many equal shares as there are programs a head of
keys, so that ragged lengths and any batch keep all processors busy to the end. Which share begins where is computed
on the device from the lengths, once a step (`plan`), so that captured CUDA graphs stay right. A program walks through
its share: for each sequence in it, it leaves a part (sums, largest score, sum of weights), and a second kernel merges
the parts of each sequence. Share s and sequence b meet at most once, and s + b grows from one meeting to the next:
it is the part's place.

Up to eight query heads for one head of keys multiply codes as they are (triton_decode_codes.py); for more, codes
become BF16 (or FP16) in registers: 255 integers, exact. A key's scale multiplies its score, a value's its weight.

Shape suffixes: B sequences, H query heads, G heads of keys and values, D numbers of a head.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

from ascend_quant.kernels import cache_pages
from ascend_quant.kernels.cuda.serve import triton_decode_codes
from ascend_quant.kernels.cuda.serve.triton_decode_codes import query_halves, weights_of, with_codes

LOG2E = tl.constexpr(1.4426950408889634)
FEWEST_ROWS = 16  # of a tensor core's product
MOST_GROUP = 16  # query heads of a head of keys
REGISTERS = 1 << 16  # of a multiprocessor, from sm80 to sm100


class DecodeTiles(NamedTuple):
    """The tiles of decode attention: how its work is cut.

    Attributes:
        tile: tokens that a program multiplies at once.
        programs: how many run on each multiprocessor, all heads together.
        warps, stages: of each program.
        codes: whether codes are multiplied as they are, for up to `triton_decode_codes.HEADS` query heads each.
    """

    tile: int
    programs: int
    warps: int
    stages: int
    codes: bool = False

    @property
    def registers(self) -> int:
        """The most registers of a thread with which `programs` run at once on a multiprocessor, a multiple of 8."""
        return min(REGISTERS // (self.programs * self.warps * 32) // 8 * 8, 248)


# Of benchmarks/results/2026-11-27-h200.md: within 2.4 % of the fastest in all; not run on Blackwell.
CODES = DecodeTiles(64, 6, 2, 3, codes=True)
# For heads of more than 128 numbers, of which fewer programs have room; not run.
WIDE = DecodeTiles(64, 3, 4, 3, codes=True)
# There the fastest of those that make codes BF16 in all cases.
LARGE = DecodeTiles(128, 2, 4, 3)
# Within 17 % of that, with half of the shared memory; not run on an A100.
SMALL = DecodeTiles(64, 3, 4, 3)
HOPPER = (9, 0)


def usual(device: torch.device, group: int, head: int) -> DecodeTiles:
    """Choose tiles that fit the device's shared memory, for `group` query heads a key head and head size `head`."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return SMALL
    if group > triton_decode_codes.HEADS:
        return LARGE
    return CODES if head <= 128 else WIDE


class Plan(NamedTuple):
    """The plan of a decode step, on the device: where each share of the sequences' tiles begins.

    Attributes:
        first_tile: int32 (B + 1), the first tile of each sequence.
        first_sequence: int32 (shares), the first sequence of each share.
    """

    first_tile: torch.Tensor
    first_sequence: torch.Tensor
    tile: int

    @property
    def shares(self) -> int:
        return self.first_sequence.shape[0]


@triton.jit(do_not_specialize=["B"])
def plan_shares(
    lengths,
    first_tile,
    first_sequence,
    B,
    TILE: tl.constexpr,
    SEQUENCES: tl.constexpr,  # a power of two, from the largest B
):
    """Find each share's first tile and sequence; one program a share."""
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
    """Return the addresses of a tile's keys (tokens, D), values (D, tokens) and key scales; value scales are a page
    behind.

    Tokens come by sixteen of one page, which Triton cannot see where it knows nothing of the blocks.
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
    """Add a tile of keys to the online softmax: largest scores, sums of weights and of weighted values (ROWS, D).

    Args:
        seen: (ROWS or 1, TILE), the tokens that a row attends to.
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
    ROWS: tl.constexpr,  # of queries, of which GROUP are used
    STAGES: tl.constexpr,
    CODES: tl.constexpr,
):
    """Attend to a share of the tiles; one program a share and key head."""
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
            if PAGE % TILE == 0:  # a tile lies in one page, whose number was asked for a step earlier
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
    """Merge the shares' parts of a sequence and query head, one program each; one without tokens gets zeros."""
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


class Decoder:
    """The workspace and launches of decode attention; made once for the most sequences, before graphs are captured.

    Attributes:
        shares: into which the tiles are cut, for each head of keys.
    """

    def __init__(
        self,
        most_sequences: int,
        query_heads: int,
        layout: cache_pages.Layout,
        device: torch.device,
        tiles: DecodeTiles | None = None,
        processors: int = 132,
    ):
        tiles, problem = tiles or usual(device, query_heads // layout.heads, layout.head), layout.problem()
        most = triton_decode_codes.HEADS if tiles.codes else MOST_GROUP
        if query_heads % layout.heads or query_heads // layout.heads > most:
            problem = f"{query_heads} query heads for {layout.heads} heads of keys: up to {most} each are taken"
        if problem is not None:
            raise ValueError(problem)
        self.layout, self.tiles, self.query_heads = layout, tiles, query_heads
        self.shares = max(tiles.programs * processors // layout.heads, 1)
        self.most = triton.next_power_of_2(most_sequences)  # one plan is compiled, not one for each count
        places = self.shares + most_sequences
        room = {"dtype": torch.float32, "device": device}
        self.sums = torch.empty(places, query_heads, layout.head, **room)
        self.tops, self.weights = (torch.empty(places, query_heads, **room) for _ in range(2))
        self.first_tile = torch.zeros(most_sequences + 1, dtype=torch.int32, device=device)
        self.first_sequence = torch.zeros(self.shares, dtype=torch.int32, device=device)

    def plan(self, lengths: torch.Tensor) -> Plan:
        """Plan the shares for sequence lengths, int32 (B) on the device: in place, one launch a step, for all layers.

        Raises:
            ValueError: more sequences than there is room for.
        """
        count = lengths.shape[0]
        if count >= len(self.first_tile):
            raise ValueError(f"{count} sequences; there is room for {len(self.first_tile) - 1}")
        plan = Plan(self.first_tile[: count + 1], self.first_sequence, self.tiles.tile)
        with torch.cuda.device_of(lengths):
            plan_shares[(self.shares,)](
                lengths, plan.first_tile, plan.first_sequence, count, self.tiles.tile, self.most
            )
        return plan

    def __call__(
        self,
        q_BHD: torch.Tensor,
        cache: torch.Tensor,
        block_table: torch.Tensor,
        lengths: torch.Tensor,
        plan: Plan,
        softmax_scale: float,
        out_BHD: torch.Tensor,
    ) -> torch.Tensor:
        """Attention of each sequence's query over its tokens, the query's own among them.

        Args:
            q_BHD: BF16 or FP16, a token's heads adjacent; `out_BHD` likewise.
            cache: see `cache_pages`.
            block_table: int32 (B, blocks) of each sequence, its columns adjacent.
            lengths: int32 (B); 0 where there is no sequence.
        """
        count, layout, tiles = lengths.shape[0], self.layout, self.tiles
        group = self.query_heads // layout.heads
        with torch.cuda.device_of(cache):
            attend_shares[(layout.heads, self.shares)](
                q_BHD, cache, block_table, lengths, plan.first_tile, plan.first_sequence, self.sums, self.tops,
                self.weights, count, q_BHD.stride(0), block_table.stride(0), softmax_scale,
                **constants(layout, group, tiles), num_warps=tiles.warps, maxnreg=tiles.registers,
            )  # fmt: skip
            merge_parts[(count, self.query_heads)](
                out_BHD, plan.first_tile, self.sums, self.tops, self.weights, count, self.shares, out_BHD.stride(0),
                self.query_heads, layout.head, num_warps=1,
            )  # fmt: skip
        return out_BHD


def constants(layout: cache_pages.Layout, group: int, tiles: DecodeTiles) -> dict[str, int | bool]:
    """Return the constants that `attend_shares` is compiled with."""
    return {
        "HEADS": layout.heads,
        "GROUP": group,
        "HEAD": layout.head,
        "PAGE": layout.page,
        "TOGETHER": layout.together,
        "TILE": tiles.tile,
        "ROWS": triton_decode_codes.HEADS if tiles.codes else FEWEST_ROWS,
        "STAGES": tiles.stages,
        "CODES": tiles.codes,
    }
