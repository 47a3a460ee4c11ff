"""Split-K and stream-K GEMMs, in which several programs share a tile: schedule and workspace.

Tiles seldom fill the GPU evenly: 80 of them leave 52 of 132 multiprocessors idle. `split_k` divides the K dimension of
each tile; `stream_k` on Hopper (Osama et al., 2023, arXiv 2301.03598) gives all programs the same number of steps,
whichever tiles these belong to.
"""

from functools import cache
from typing import NamedTuple

import torch

from ascend_quant.kernels.tuned import HopperTiles, Tiles

COUNTERS = 1024  # tiles of a product that programs may share; more tiles fill any GPU by themselves
SLOTS = 64  # streams that have their own counters


class Grid(NamedTuple):
    """The grid of a GEMM; programs that share a tile of M are adjacent, so that they read the same weights together."""

    programs: int
    shared: bool


def grid_of(tiles: HopperTiles, rows: int, columns: int, length: int, processors: int) -> Grid:
    """Return the grid of a GEMM (rows, K) x (N, K) on a GPU with this many multiprocessors."""
    tiles_m, tiles_n = -(-rows // tiles.rows), -(-columns // tiles.block_n)
    if not tiles.stream_k or tiles_m * tiles_n > COUNTERS or tiles_m > processors:
        return Grid(min(tiles_m * tiles_n, processors), False)
    return Grid(tiles_m * min(processors // tiles_m, tiles_n * -(-length // tiles.block_k)), True)


def workspace(
    tiles: Tiles, count: int, length: int, device: torch.device
) -> tuple[int, torch.Tensor | None, torch.Tensor | None]:
    """Choose the number of parts of K (split-K), and allocate the workspace if K is split.

    Args:
        count: number of tiles of the product.
        length: K.

    Returns:
        the number of parts, int32 sums (count, parts, block_m, block_n), and int32 counters, which kernels reset to
            zero.
    """
    split = min(tiles.split_k, -(-length // tiles.block_k)) if count <= COUNTERS else 1
    if split == 1:
        return 1, None, None
    sums = torch.empty(count * split * tiles.block_m * tiles.block_n, dtype=torch.int32, device=device)
    return split, sums, counters(device)


def counters(device: torch.device) -> torch.Tensor:
    """Return COUNTERS zeros of the current stream; streams do not share them, since their products may overlap."""
    if device.type != "cuda":
        return _zeros(device)
    slots, stream = _slots(device), torch.cuda.current_stream(device).cuda_stream
    if stream in slots:
        return slots[stream]
    if not slots and not torch.cuda.is_current_stream_capturing():
        slots[None] = torch.zeros(SLOTS, COUNTERS, dtype=torch.int32, device=device)
        torch.cuda.synchronize(device)  # other streams must see zeros
    if not 0 < len(slots) <= SLOTS:
        return _zeros(device)  # belongs to the graph, and is zeroed at each replay
    slots[stream] = slots[None][len(slots) - 1]
    return slots[stream]


def _zeros(device: torch.device) -> torch.Tensor:
    return torch.zeros(COUNTERS, dtype=torch.int32, device=device)


@cache
def _slots(device: torch.device) -> dict[int | None, torch.Tensor]:
    """Return counters by stream; key None has the tensor of which they are rows, once it is allocated."""
    return {}
