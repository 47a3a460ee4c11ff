"""Which program of Hopper's int8 product takes which steps of which tile: the kernel's functions, run on integers."""

import inspect
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

from ascend_quant.kernels.shared_tiles import Grid, grid_of
from ascend_quant.kernels.tuned import HopperTiles

PROCESSORS = 132
WHOLE = HopperTiles(128, 128, 128, 8, 5)
WAYS = {"whole": WHOLE, "stream_k": WHOLE._replace(stream_k=True)}
SHAPES = [(5120, 27648), (3584, 18944), (37888, 3584), (48, 512), (4096, 130), (17024, 256), (200000, 128)]


@pytest.fixture
def kernel(monkeypatch):
    """The module, its device functions callable, and `gl` computing with integers; `kernel.gl.program`: which runs."""
    from ascend_quant.kernels import gluon_shares

    numbers = SimpleNamespace(
        program=0,
        programs=0,
        cdiv=lambda a, b: -(-a // b),
        minimum=min,
        maximum=max,
        where=lambda condition, yes, no: yes if condition else no,
    )
    numbers.program_id, numbers.num_programs = (lambda _: numbers.program), (lambda _: numbers.programs)
    monkeypatch.setattr(gluon_shares, "gl", numbers)
    monkeypatch.setattr(gluon_shares, "GROUP_M", gluon_shares.GROUP_M.value)
    for name in ("count_of", "part_of", "_share", "sharers_of"):
        monkeypatch.setattr(gluon_shares, name, inspect.unwrap(getattr(gluon_shares, name).fn))
    return gluon_shares


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("more", [0, 64])
@pytest.mark.parametrize("rows", [1, 160, 256, 700])
@pytest.mark.parametrize(("columns", "length"), SHAPES)
def test_every_step_of_every_tile_is_taken_once(columns, length, rows, more, way, kernel):
    tiles = WAYS[way]._replace(more=more)
    grid = grid_of(tiles, rows, columns, length, PROCESSORS)
    sizes, blocks = (rows, columns, length), (tiles.rows, 128, 128)
    takers, kernel.gl.programs = {}, grid.programs
    for kernel.gl.program in range(grid.programs):
        begun = 0
        for i in range(kernel.count_of(sizes, *blocks, grid.shared)):
            m, n, first, last = kernel.part_of(i, sizes, *blocks, grid.shared)
            takers.setdefault((m, n), []).append((kernel.gl.program, range(first, last)))
            begun += first == 0 and last < -(-length // 128)
        assert begun <= 1  # it has one place for such a tile, and one for what another has begun
    of_m, of_n, steps = -(-rows // tiles.rows), -(-columns // 128), -(-length // 128)
    assert takers.keys() == {(m, n) for m in range(of_m) for n in range(of_n)}
    for (_, n), parts in takers.items():
        assert sorted(step for _, part in parts for step in part) == [*range(steps)]
        if len(parts) > 1:  # each counts to the same number, and finds the others' sums where they left them
            begins, ends = kernel.sharers_of(n, sizes, *blocks)
            assert sorted(program // of_m for program, _ in parts) == [*range(begins, ends + 1)]
            assert len({program % of_m for program, _ in parts}) == 1


@pytest.mark.parametrize("more", [0, 64])
@pytest.mark.parametrize("rows", [1, 64, 65, 160, 256, 700])
@pytest.mark.parametrize(("columns", "length"), SHAPES)
def test_programs_that_share_tiles_are_as_many_for_each_tile_of_m(columns, length, rows, more):
    of_m, of_n, steps = -(-rows // (128 + more)), -(-columns // 128), -(-length // 128)
    found = grid_of(WAYS["stream_k"]._replace(more=more), rows, columns, length, PROCESSORS)
    if of_m * of_n > 1024:
        assert found == Grid(PROCESSORS, False)
    else:
        assert found.shared and found.programs <= PROCESSORS
        assert found.programs % of_m == 0 and found.programs // of_m <= of_n * steps  # each has a step at least
        assert found.programs + of_m > min(PROCESSORS, of_m * of_n * steps)  # and few processors have none
