"""Which program of `gluon_linear` takes which steps of which tile, on the device.

`sizes` are M, N, K, and rounds and sharers of a `shared_tiles.Grid`, which says how tiles are shared; tiles of M have
ROWS rows.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

GROUP_M = gl.constexpr(8)  # tiles of M that are walked before the next tile of N


@gluon.jit
def count_of(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """How many tiles this program works on."""
    M, N, K, rounds, _ = sizes
    if SHARED:
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        steps = gl.cdiv(K, BLOCK_K)
        return gl.cdiv(last, steps) - first // steps + rounds
    else:
        tiles = gl.cdiv(M, ROWS) * gl.cdiv(N, BLOCK_N)
        return gl.cdiv(tiles - gl.program_id(0), gl.num_programs(0))


@gluon.jit
def part_of(i, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr, SHARED: gl.constexpr):
    """This program's i-th tile: its place in M and N, and the steps of K from the first to before the last."""
    M, N, K, rounds, _ = sizes
    tiles_m, tiles_n, steps = gl.cdiv(M, ROWS), gl.cdiv(N, BLOCK_N), gl.cdiv(K, BLOCK_K)
    if SHARED:  # shared tiles come first: while one program adds, the others are at their whole tiles
        each = gl.num_programs(0) // tiles_m
        first, last = _share(sizes, ROWS, BLOCK_N, BLOCK_K)
        shared = gl.cdiv(last, steps) - first // steps
        begin = (first // steps + i) * steps
        n = gl.where(i < shared, rounds * each + first // steps + i, (i - shared) * each + gl.program_id(0) // tiles_m)
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
    M, _, _, _, sharers = sizes
    total, sharer = _steps(sizes, ROWS, BLOCK_N, BLOCK_K), gl.program_id(0) // gl.cdiv(M, ROWS)
    return gl.minimum(sharer, sharers) * total // sharers, gl.minimum(sharer + 1, sharers) * total // sharers


@gluon.jit
def _steps(sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Of all shared tiles that have the same place in M."""
    M, N, K, rounds, _ = sizes
    each = gl.num_programs(0) // gl.cdiv(M, ROWS)
    return (gl.cdiv(N, BLOCK_N) - rounds * each) * gl.cdiv(K, BLOCK_K)


@gluon.jit
def sharers_of(n, sizes, ROWS: gl.constexpr, BLOCK_N: gl.constexpr, BLOCK_K: gl.constexpr):
    """Which of the sharers has the first step of a shared tile, and which its last."""
    M, _, K, rounds, sharers = sizes
    total, steps = _steps(sizes, ROWS, BLOCK_N, BLOCK_K), gl.cdiv(K, BLOCK_K)
    before = (n - rounds * (gl.num_programs(0) // gl.cdiv(M, ROWS))) * steps  # of the tiles in front of it
    return ((before + 1) * sharers - 1) // total, ((before + steps) * sharers - 1) // total
