"""Which program of Hopper's int8 product takes which steps of which tile: the kernel's functions, run on integers."""

import inspect
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from ascend_quant.kernels.cuda.serve.shared_tiles import Grid, grid_of
from ascend_quant.kernels.tuned import HopperTiles

PROCESSORS = 132
WHOLE = HopperTiles(128, 128, 128, 8, 5)
TILES = st.builds(
    HopperTiles, st.just(128), st.just(128), st.just(128), st.just(8), st.just(5), stream_k=st.booleans(),
    more=st.sampled_from([0, 64]),
)  # fmt: skip
SIZES = st.tuples(st.integers(1, 700), st.integers(1, 40000) | st.just(200000), st.integers(100, 28000))  # M, N, K
quick = settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def kernel(monkeypatch):
    """The module, its device functions callable, and `gl` computing with integers; `kernel.gl.program`: which runs."""
    from ascend_quant.kernels.cuda.serve import gluon_shares

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


@quick
@given(TILES, SIZES)
@example(WHOLE, (160, 37888, 3584))
@example(WHOLE._replace(stream_k=True), (700, 48, 512))
def test_every_step_of_every_tile_is_taken_once(kernel, tiles, sizes):
    rows, columns, length = sizes
    grid = grid_of(tiles, rows, columns, length, PROCESSORS)
    blocks = tiles.rows, 128, 128
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


@quick
@given(TILES, SIZES)
def test_programs_that_share_tiles_are_as_many_for_each_tile_of_m(tiles, sizes):
    rows, columns, length = sizes
    of_m, of_n, steps = -(-rows // tiles.rows), -(-columns // 128), -(-length // 128)
    found = grid_of(tiles._replace(stream_k=True), rows, columns, length, PROCESSORS)
    if of_m * of_n > 1024:
        assert found == Grid(PROCESSORS, False)
    else:
        assert found.shared and found.programs <= PROCESSORS
        assert found.programs % of_m == 0 and found.programs // of_m <= of_n * steps  # each has a step at least
        assert found.programs + of_m > min(PROCESSORS, of_m * of_n * steps)  # and few processors have none
