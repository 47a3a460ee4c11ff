"""The int8 product's kernels, compiled: sums stay in registers, tensor cores multiply, nothing is fused or too large.

For Ampere, Hopper and Blackwell, by Triton and its own ptxas, which need no GPU.
"""

import pytest

pytest.importorskip("triton")

from compiled_linear import compiled

from ascend_quant.kernels import linear_choice, tune_linear, tuned
from ascend_quant.kernels.tuned import HopperTiles, Tiles

TENSOR_CORES = {  # the instruction that multiplies int8; Triton has none of Blackwell's own
    80: "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
    90: "wgmma.mma_async.sync.aligned",
    100: "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32",
}
SHARED = {80: 163 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes that a program may have
EVERYWHERE = 99 << 10  # on sm86, sm89 and sm120
SHIPPED = [tuned.load(file).get("linear", {}) for file in sorted(tuned.SHIPPED.glob("*.json"))]


def shipped():
    """The tiles of the shipped tables, without those that differ in the number of parts alone."""
    choices = (choice for table in SHIPPED for buckets in table.values() for choice in buckets.values())
    found = {linear_choice.tiles_of(choice) for choice in choices} - {None}
    return sorted({t._replace(split_k=min(2, t.split_k)) if isinstance(t, Tiles) else t for t in found}, key=str)


def check(made, capability):
    assert made.stack == 0
    assert made.shared <= SHARED[capability]
    assert TENSOR_CORES[capability] in made.ptx
    assert "fma.rn.f32" not in made.ptx  # the bias is added to a product that is rounded first


@pytest.mark.parametrize("capability", SHARED)
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("rows", linear_choice.BY_ROWS)
def test_tiles_by_rule(rows, parts, capability, tmp_path):
    made = compiled(linear_choice.BY_ROWS[rows]._replace(split_k=parts), capability, tmp_path)
    check(made, capability)
    assert made.shared <= EVERYWHERE


@pytest.mark.parametrize("tiles", shipped(), ids=str)
def test_tiles_that_are_shipped_for_hopper(tiles, tmp_path):
    check(compiled(tiles, 90, tmp_path), 90)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("block_m", tune_linear.HOPPER_BLOCKS)
def test_hoppers_own_kernel(block_m, shared, tmp_path):
    for blocks in tune_linear.HOPPER_BLOCKS[block_m]:
        made = compiled(HopperTiles(block_m, *blocks, stream_k=shared), 90, tmp_path)
        check(made, 90)
        assert "wgmma.wait_group.sync.aligned 1" in made.ptx  # a step's products run while the next step's begin
        assert ("atom.global" in made.ptx) is shared  # programs of one tile count each other


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("blocks", tune_linear.HOPPER_BLOCKS_OF_192, ids=str)
def test_hoppers_own_kernel_with_tiles_of_192_tokens(blocks, shared, tmp_path):
    made = compiled(HopperTiles(128, *blocks, stream_k=shared, more=64), 90, tmp_path)
    check(made, 90)
    assert "wgmma.wait_group.sync.aligned 2" in made.ptx and ("atom.global" in made.ptx) is shared


@pytest.mark.parametrize(("pdl", "ahead"), [(False, 0), (True, 0), (True, 4)])
@pytest.mark.parametrize("tma", [False, True])
def test_hoppers_ways_to_load_and_to_start(tma, pdl, ahead, tmp_path):
    made = compiled(Tiles(64, 64, 128, 1, 4, 4, tma=tma, pdl=pdl, ahead=ahead), 90, tmp_path)
    check(made, 90)
    assert ("griddepcontrol.wait" in made.ptx) is pdl and ("cp.async.bulk.tensor" in made.ptx) is tma
    before, _, after = made.ptx.partition("griddepcontrol.wait")
    assert ("prefetch.global.L2" in before) is (ahead > 0) and "prefetch.global.L2" not in after


@pytest.mark.parametrize("late", [False, True])
def test_the_next_kernel_may_come_at_the_beginning_or_after_the_sums(late, tmp_path):
    made = compiled(Tiles(64, 64, 128, 1, 4, 4, tma=True, pdl=True, late=late), 90, tmp_path)
    check(made, 90)
    before, calls, after = made.ptx.partition("griddepcontrol.launch_dependents")
    assert calls and "launch_dependents" not in after
    assert ("wgmma.mma_async" in before) is late and ("wgmma.mma_async" in after) is not late
    assert "st.global" not in before  # it does not wait for the values


def test_nothing_is_asked_for_by_a_kernel_that_does_not_start_early(tmp_path):
    assert "prefetch" not in compiled(Tiles(64, 64, 128, 1, 4, 4, ahead=4), 90, tmp_path).ptx
