"""The int8 cache's kernels, compiled: keys and values come sixteen bytes at once, all sums stay in registers.

For Ampere, Hopper and Blackwell, by Triton and its own ptxas, which need no GPU.
"""

import re

import pytest
import torch

pytest.importorskip("triton")

from compiled_kernel import SHARED, compiled

from ascend_quant.kernels import cache_pages, triton_cache, triton_decode, triton_extend
from ascend_quant.kernels.triton_decode import DecodeTiles

CAPABILITIES = (80, 90, 100)
LEAST_SHARED = {80: 164 << 10, 90: 227 << 10, 100: 227 << 10}  # bytes of a multiprocessor
ACROSS = 16  # bytes of a thread that may wait in memory while a sequence's tiles are walked through
PARTS = dict.fromkeys(("part_sums", "part_tops", "part_weights"), "*fp32")
PLAN = dict.fromkeys(("lengths", "first_tile", "first_sequence", "block_table"), "*i32")
ATTEND = {"q": "*bf16", "cache": "*i8", "softmax_scale": "fp32", **PLAN, **PARTS}
TILES = [triton_decode.LARGE, triton_decode.SMALL, DecodeTiles(64, 2, 4, 4), DecodeTiles(128, 2, 8, 3)]
OF_CODES = [DecodeTiles(128, 2, 4, 3, True), DecodeTiles(64, 4, 2, 4, True), triton_decode.CODES]


def check(made, stack, tiles_loaded, most=0):
    """No more bytes are spilled than named; of each tile of codes every load is of 16 bytes."""
    assert stack <= most
    ptx = made.asm["ptx"]
    assert not re.search(r"ld\.global\S*\.b8", ptx) and "ld.shared.b8" not in ptx
    assert len(re.findall(r"cp\.async\.cg\S+ \[[^]]*\], \[[^]]*\], 0x10", ptx)) >= tiles_loaded


@pytest.mark.parametrize("capability", CAPABILITIES)
@pytest.mark.parametrize("page", [64, 128])
@pytest.mark.parametrize("heads, group", [(4, 7), (8, 5)])
def test_the_usual_decode(heads, group, page, capability, tmp_path):
    layout = cache_pages.Layout(page, heads, 128)
    tiles = triton_decode.SMALL if capability == 80 else triton_decode.CODES
    constants = triton_decode.constants(layout, group, tiles)
    options = {"num_warps": tiles.warps, "maxnreg": tiles.registers}
    made, stack = compiled(triton_decode.attend_shares, capability, constants, ATTEND, tmp_path, **options)
    per_tile = 2 * tiles.tile * 128 // (16 * 32 * tiles.warps)  # of a thread
    check(made, stack, per_tile, ACROSS if tiles.codes else 0)
    assert made.metadata.shared * tiles.programs <= LEAST_SHARED[capability]
    assert ("mma.sync.aligned.m16n8k32" if tiles.codes else "mma.sync") in made.asm["ptx"]


def test_eight_threads_read_128_adjacent_bytes(tmp_path):
    """That is what a multiprocessor asks the L2 cache for at once; of several pieces, for each by itself."""
    layout, tiles = cache_pages.Layout(128, 4, 128), triton_decode.CODES
    constants = triton_decode.constants(layout, 7, tiles)
    options = {"num_warps": tiles.warps, "maxnreg": tiles.registers}
    text = compiled(triton_decode.attend_shares, 90, constants, ATTEND, tmp_path, **options)[0].asm["ttgir"]
    parts = cache_pages.views(cache_pages.empty(1, layout, "cpu"))
    k, v = parts.keys[0, 0, : tiles.tile], parts.values[0, 0].permute(1, 0, 2)[:, : tiles.tile // layout.together]
    for shape, codes in (((tiles.tile, 128), k), ((128, tiles.tile), v)):
        (name,) = set(re.findall(rf"async_copy_global_to_local .*{shape[0]}x{shape[1]}x!tt.ptr<i8>, (#\w+)>", text))
        found = re.search(
            rf"{name} = #ttg.blocked<{{sizePerThread = \[1, 16\], threadsPerWarp = \[\d+, (\d+)\].*order = \[1, 0\]}}>",
            text,
        )
        assert codes.numel() == shape[0] * shape[1]
        rows, columns = (torch.arange(8) // int(found[1]), torch.arange(8) % int(found[1]) * 16)
        at = (
            torch.arange(codes.untyped_storage().nbytes())
            .as_strided(codes.shape, codes.stride())
            .reshape(shape)[rows, columns]
        )
        assert sorted(at - at.min()) == list(range(0, 128, 16))


@pytest.mark.parametrize("tiles", TILES, ids=str)
def test_decodes_that_are_tried_on_hopper(tiles, tmp_path):
    layout = cache_pages.Layout(128, 4, 128)
    constants = triton_decode.constants(layout, 7, tiles)
    made, stack = compiled(triton_decode.attend_shares, 90, constants, ATTEND, tmp_path, num_warps=tiles.warps)
    assert stack == 0 and made.metadata.shared * tiles.programs <= 227 << 10
    assert "ld.global.b8" not in made.asm["ptx"]


@pytest.mark.parametrize("capability", (90, 100))
def test_the_usual_decode_of_wide_heads(capability, tmp_path):
    tiles = triton_decode.WIDE
    constants = triton_decode.constants(cache_pages.Layout(64, 2, 256), 8, tiles)
    options = {"num_warps": tiles.warps, "maxnreg": tiles.registers}
    made, stack = compiled(triton_decode.attend_shares, capability, constants, ATTEND, tmp_path, **options)
    check(made, stack, 2 * tiles.tile * 256 // (16 * 32 * tiles.warps), ACROSS)
    assert made.metadata.shared * tiles.programs <= LEAST_SHARED[capability]


@pytest.mark.parametrize("capability", (80, 90))
@pytest.mark.parametrize("tiles", OF_CODES, ids=str)
def test_decodes_by_products_of_codes(tiles, capability, tmp_path):
    constants = triton_decode.constants(cache_pages.Layout(128, 4, 128), 7, tiles)
    made, stack = compiled(triton_decode.attend_shares, capability, constants, ATTEND, tmp_path, num_warps=tiles.warps)
    ptx = made.asm["ptx"]
    assert stack == 0 and made.metadata.shared * tiles.programs <= 227 << 10
    assert "mma.sync.aligned.m16n8k32" in ptx and "bf16" not in "".join(re.findall(r"mma\.sync\S+", ptx))
    assert "ld.global.b8" not in ptx


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_chunks(capability, tmp_path):
    constants = triton_extend.constants(cache_pages.Layout(64, 4, 128), 7, False)
    pointers = {"q": "*bf16", "out": "*bf16", "cache": "*i8", "softmax_scale": "fp32"}
    pointers |= dict.fromkeys(("block_table", "lengths", "starts"), "*i32")
    made, stack = compiled(
        triton_extend.attend_chunks, capability, constants, pointers, tmp_path, num_warps=triton_extend.WARPS
    )
    assert stack == 0 and made.metadata.shared <= SHARED
    assert not re.search(r"ld\.global\S*\.b8", made.asm["ptx"])


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_the_writer_the_plan_and_the_merge(capability, tmp_path):
    sizes = {"HEADS": 4, "HEAD": 128, "PAGE": 64, "TOGETHER": 64, "ROWS": 4}
    pointers = {"key": "*bf16", "value": "*bf16", "cache": "*i8", "slots": "*i64"}
    made, stack = compiled(triton_cache.write_tokens, capability, sizes, pointers, tmp_path, num_warps=1)
    assert stack == 0 and "st.global.v4.b32" in made.asm["ptx"]
    plan = {"TILE": 64, "SEQUENCES": 256}
    assert compiled(triton_decode.plan_shares, capability, plan, PLAN, tmp_path)[1] == 0
    merge = {"out": "*bf16", "first_tile": "*i32", **PARTS}
    assert compiled(triton_decode.merge_parts, capability, {"H": 28, "HEAD": 128}, merge, tmp_path, num_warps=1)[1] == 0
