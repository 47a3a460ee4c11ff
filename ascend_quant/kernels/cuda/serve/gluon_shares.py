"""Tile scheduler of `gluon_linear`: the steps and tiles of each program, computed on the device.

`sizes` are M, N, K. If programs share tiles (`shared_tiles.Grid`), each tile of M (ROWS rows) is processed by the same
number of programs; a sharer is the index of a program among these.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUP_M = gl.constexpr(8)  # tiles of M that are processed before the next tile of N


@gluon.jit
def count_of(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """Return how many tiles this program processes."""
    M, N, K = sizes
    if SHARED:
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        steps = gl.cdiv(K, BLOCK_K)
        return gl.cdiv(last, steps) - first // steps
    else:
        tiles = gl.cdiv(M, ROWS) * gl.cdiv(N, BLOCK_N)
        return gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def part_of(i, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """Locate this program's i-th tile: its position in M and N, and the half-open range of its steps of K."""
    M, N, K = sizes
    tiles_m, tiles_n, steps = gl.cdiv(M, ROWS), gl.cdiv(N, BLOCK_N), gl.cdiv(K, BLOCK_K)
    if SHARED:
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        n = first // steps + i
        begin = n * steps
        return gl.program_id(0) % tiles_m, n, gl.maximum(first - begin, 0), gl.minimum(last - begin, steps)
    else:  # see `triton_linear._place`
        tile = gl.program_id(0) + i * gl.num_programs(0)
        in_group = GROUP_M * tiles_n
        first_m = tile // in_group * GROUP_M
        high = gl.minimum(tiles_m - first_m, GROUP_M)
        return first_m + tile % in_group % high, tile % in_group // high, 0, steps


@gluon.jit
def _share(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Return this program's range of steps among those of all tiles at its position in M."""
    M, N, K = sizes
    tiles_m = gl.cdiv(M, ROWS)
    total = gl.cdiv(N, BLOCK_N) * gl.cdiv(K, BLOCK_K)
    sharers, sharer = gl.num_programs(0) // tiles_m, gl.program_id(0) // tiles_m
    return sharer * total // sharers, (sharer + 1) * total // sharers


@gluon.jit
def sharers_of(n, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Return which sharer has the first step of a tile, and which has its last."""
    M, N, K = sizes
    steps, sharers = gl.cdiv(K, BLOCK_K), gl.num_programs(0) // gl.cdiv(M, ROWS)
    total = gl.cdiv(N, BLOCK_N) * steps
    return ((n * steps + 1) * sharers - 1) // total, ((n + 1) * steps * sharers - 1) // total
