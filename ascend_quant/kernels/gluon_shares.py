"""Which program of `gluon_linear` takes which steps of which tile: how many there are, and on the device whose is what.

Tiles seldom fill the GPU evenly: 80 of them leave 52 of 132 multiprocessors idle, and the last 32 of 296 take as long
as 132 would. With `stream_k` (Osama et al., 2023, arXiv 2301.03598) all programs take as many steps instead; with
`cut_last` only tiles of a round that is not full are shared, each by as many programs.

On the device `sizes` are M, N, K and `Grid`'s rounds and sharers; tiles of M have ROWS rows.
"""

from typing import NamedTuple

import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from ascend_quant.kernels.shared_tiles import COUNTERS
from ascend_quant.kernels.tuned import HopperTiles

GROUP_M = gl.constexpr(8)  # tiles of M that are walked before the next tile of N
MOST_PARTS = 4  # of a tile that is cut: the program that arrives last adds one after the other


class Grid(NamedTuple):
    """How programs take tiles. Where they share some, there are as many for each tile of M, side by side, so that they
    read the same weights at the same time; "of N" is for each tile of M.

    Attributes:
        rounds: whole tiles of N that each program takes.
        sharers: programs that share the other tiles of N; 0 where none are shared.
    """

    programs: int
    rounds: int = 0
    sharers: int = 0


def grid_of(tiles: HopperTiles, rows: int, columns: int, length: int, processors: int) -> Grid:
    """Of a product (rows, K) x (N, K) on so many multiprocessors."""
    tiles_m, tiles_n = triton.cdiv(rows, tiles.rows), triton.cdiv(columns, tiles.block_n)
    count, steps = tiles_m * tiles_n, triton.cdiv(length, tiles.block_k)
    whole = Grid(min(count, processors))
    if count > COUNTERS or tiles_m > processors:
        return whole
    each = processors // tiles_m
    if tiles.stream_k:
        each = min(each, tiles_n * steps)
        return Grid(tiles_m * each, 0, each)
    rounds, rest = divmod(tiles_n, each)
    parts = min(each // rest, steps, MOST_PARTS) if tiles.cut_last and rest else 1
    return whole if parts == 1 else Grid(tiles_m * each, rounds, rest * parts)


@gluon.jit
def count_of(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """How many tiles this program works on."""
    if SHARED:
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        steps = gl.cdiv(sizes[2], BLOCK_K)
        return gl.cdiv(last, steps) - first // steps + sizes[3]
    else:
        tiles = gl.cdiv(sizes[0], ROWS) * gl.cdiv(sizes[1], BLOCK_N)
        return gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def part_of(i, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """This program's i-th tile: its place in M and N, and the steps of K from the first to before the last."""
    tiles_m, tiles_n, steps = gl.cdiv(sizes[0], ROWS), gl.cdiv(sizes[1], BLOCK_N), gl.cdiv(sizes[2], BLOCK_K)
    if SHARED:  # shared tiles come first: while one program adds, the others are at their whole tiles
        each = gl.num_programs(0) // tiles_m
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        shared = gl.cdiv(last, steps) - first // steps
        begin = (first // steps + i) * steps
        n = gl.where(
            i < shared, sizes[3] * each + first // steps + i, (i - shared) * each + gl.program_id(0) // tiles_m
        )
        first = gl.where(i < shared, gl.maximum(first - begin, 0), 0)
        return gl.program_id(0) % tiles_m, n, first, gl.where(i < shared, gl.minimum(last - begin, steps), steps)
    else:  # see `triton_linear._place`
        tile = gl.program_id(0) + i * gl.num_programs(0)
        in_group = GROUP_M * tiles_n
        first_m = tile // in_group * GROUP_M
        high = gl.minimum(tiles_m - first_m, GROUP_M)
        return first_m + tile % in_group % high, tile % in_group // high, 0, steps


@gluon.jit
def _share(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """This program's steps among those of the shared tiles that have its place in M; none for a program too many."""
    total, sharer = _steps(sizes, ROWS, BLOCK_N, BLOCK_K), gl.program_id(0) // gl.cdiv(sizes[0], ROWS)
    sharers = sizes[4]
    return gl.minimum(sharer, sharers) * total // sharers, gl.minimum(sharer + 1, sharers) * total // sharers


@gluon.jit
def _steps(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Of all shared tiles that have the same place in M."""
    each = gl.num_programs(0) // gl.cdiv(sizes[0], ROWS)
    return (gl.cdiv(sizes[1], BLOCK_N) - sizes[3] * each) * gl.cdiv(sizes[2], BLOCK_K)


@gluon.jit
def sharers_of(n, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Which of the sharers has the first step of a shared tile, and which its last."""
    total, steps = _steps(sizes, ROWS, BLOCK_N, BLOCK_K), gl.cdiv(sizes[2], BLOCK_K)
    before = (n - sizes[3] * (gl.num_programs(0) // gl.cdiv(sizes[0], ROWS))) * steps  # of the tiles in front of it
    return ((before + 1) * sizes[4] - 1) // total, ((before + steps) * sizes[4] - 1) // total
