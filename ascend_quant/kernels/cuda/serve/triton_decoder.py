"""Decode attention over an int8 KV cache: tile sizes, the plan of a step, and launches of triton_decode.py's kernels.

The concatenated tiles of all sequences are divided into equal shares, one per program and key head, so that all
processors stay busy for any batch and any lengths. The start of each share is computed on the device from the lengths,
once per step (`Decoder.plan`), so that captured CUDA graphs stay valid.

Shape suffixes: B sequences, H query heads, D head size.
"""

from typing import NamedTuple

import torch
import triton

from ascend_quant.kernels import cache_pages
from ascend_quant.kernels.cuda.serve import triton_decode_codes
from ascend_quant.kernels.cuda.serve.triton_decode import attend_shares, merge_parts, plan_shares

FEWEST_ROWS = 16  # minimum rows of a tensor core product
MOST_GROUP = 16  # query heads per key head
REGISTERS = 1 << 16  # per multiprocessor, from sm80 to sm100


class DecodeTiles(NamedTuple):
    """The tiles of decode attention, and how its work is divided.

    Attributes:
        tile: tokens that a program processes at once.
        programs: programs per multiprocessor, over all heads.
        warps, stages: per program.
        codes: whether int8 codes are multiplied directly, for up to `triton_decode_codes.HEADS` query heads per key
            head.
    """

    tile: int
    programs: int
    warps: int
    stages: int
    codes: bool = False

    @property
    def registers(self) -> int:
        """The most registers per thread, a multiple of 8, with which `programs` run at once on a multiprocessor."""
        return min(REGISTERS // (self.programs * self.warps * 32) // 8 * 8, 248)


# From benchmarks/results/2026-11-27-h200.md: within 2.4 % of the fastest everywhere; not run on Blackwell.
CODES = DecodeTiles(64, 6, 2, 3, codes=True)
# For head sizes above 128, of which fewer programs fit; not run.
WIDE = DecodeTiles(64, 3, 4, 3, codes=True)
# The fastest tiles that convert codes to BF16, in all cases measured there.
LARGE = DecodeTiles(128, 2, 4, 3)
# Within 17 % of those, with half of the shared memory; not run on an A100.
SMALL = DecodeTiles(64, 3, 4, 3)
HOPPER = (9, 0)


def usual(device: torch.device, group: int, head: int) -> DecodeTiles:
    """Choose tiles that fit the device's shared memory, for `group` query heads per key head and head size `head`."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < HOPPER:
        return SMALL
    if group > triton_decode_codes.HEADS:
        return LARGE
    return CODES if head <= 128 else WIDE


class Plan(NamedTuple):
    """The plan of a decode step, on the device: where each share of the tiles begins.

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


class Decoder:
    """The workspace and launches of decode attention, allocated for the largest batch before graphs are captured.

    Attributes:
        shares: number of shares into which the tiles of each key head are divided.
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
            problem = (
                f"{query_heads} query heads for {layout.heads} key heads: at most {most} per key head are supported"
            )
        if problem is not None:
            raise ValueError(problem)
        self.layout, self.tiles, self.query_heads = layout, tiles, query_heads
        self.shares = max(tiles.programs * processors // layout.heads, 1)
        self.most = triton.next_power_of_2(most_sequences)  # one plan is compiled for all batch sizes
        places = self.shares + most_sequences
        room = {"dtype": torch.float32, "device": device}
        self.sums = torch.empty(places, query_heads, layout.head, **room)
        self.tops, self.weights = (torch.empty(places, query_heads, **room) for _ in range(2))
        self.first_tile = torch.zeros(most_sequences + 1, dtype=torch.int32, device=device)
        self.first_sequence = torch.zeros(self.shares, dtype=torch.int32, device=device)

    def plan(self, lengths: torch.Tensor) -> Plan:
        """Plan the shares for sequence lengths, int32 (B) on the device: in place, one launch per step for all layers.

        Raises:
            ValueError: there are more sequences than the workspace was allocated for.
        """
        count = lengths.shape[0]
        if count >= len(self.first_tile):
            raise ValueError(f"{count} sequences, but the plan has room for {len(self.first_tile) - 1}")
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
        """Compute attention of each sequence's query over its tokens, including the query's own.

        Args:
            q_BHD: BF16 or FP16; a token's heads are adjacent, as in `out_BHD`.
            cache: see `cache_pages`.
            block_table: int32 (B, blocks), with adjacent columns.
            lengths: int32 (B); 0 for padding.
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
    """Return the compile-time constants of `attend_shares`."""
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
