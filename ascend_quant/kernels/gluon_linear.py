"""The W8A8 product for Hopper and many tokens: one warp brings tiles by TMA, the others multiply them; programs, one a
multiprocessor, stay and take tile after tile.

Triton's own pipeline waits for each step's int8 products before the next, and for a tile's output before the next
tile's weights; here neither waits. Numerics are those of triton_linear.py.
"""

from functools import cache

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ascend_quant.kernels.tuned import HopperTiles

LOADER_WARPS, LOADER_REGISTERS = gl.constexpr(1), gl.constexpr(40)
GROUP_M = gl.constexpr(8)  # tiles of M that are walked before the next tile of N


def launch(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, out_MN, tiles: HopperTiles) -> None:
    """Fill `out_MN`; K must be a multiple of 16."""
    (rows, length), columns = x_codes_MK.shape, codes_NK.shape[0]
    count = triton.cdiv(rows, tiles.block_m) * triton.cdiv(columns, tiles.block_n)
    x = TensorDescriptor.from_tensor(x_codes_MK, [tiles.block_m, tiles.block_k], layout(tiles.block_m, tiles.block_k))
    w = TensorDescriptor.from_tensor(codes_NK, [tiles.block_n, tiles.block_k], layout(tiles.block_n, tiles.block_k))
    arguments = (x, w, x_scale_M1, scale_N1, bias_N, out_MN, rows, columns, length)
    programs = min(count, _processors(out_MN.device))
    int8_product_hopper[(programs,)](*arguments, **constants(tiles, bias_N is not None), **options(tiles))


def layout(rows: int, block_k: int) -> gl.NVMMASharedLayout:
    """How a tile (rows, block_k) of codes lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, block_k], gl.int8)


def options(tiles: HopperTiles) -> dict[str, int | bool]:
    """What the compiler takes."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False}


def constants(tiles: HopperTiles, with_bias: bool) -> dict[str, int | bool]:
    """The kernel's constants."""
    blocks = {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k}
    return {**blocks, "STAGES": tiles.stages, "BIAS": with_bias}


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit(do_not_specialize=["M"])
def int8_product_hopper(
    x,
    w,
    x_scale,
    scale,
    bias,
    out,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    STAGES: gl.constexpr,
    BIAS: gl.constexpr,
    num_warps: gl.constexpr,
):
    x_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_M, BLOCK_K], x.layout)
    w_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, BLOCK_K], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    places, sizes = (x_tiles, w_tiles, full, empty), (M, N, K)
    gl.warp_specialize(
        [
            (_multiply, (places, sizes, (x_scale, scale, bias, out), BIAS, num_warps)),
            (_load, (x, w, places, sizes)),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )


@gluon.jit
def _count(sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    return gl.cdiv(sizes[0], BLOCK_M) * gl.cdiv(sizes[1], BLOCK_N)


@gluon.jit
def _place(tile, sizes, BLOCK_M: gl.constexpr, BLOCK_N: gl.constexpr):
    """A tile's first row and first column; see `triton_linear._place`."""
    tiles_m, tiles_n = gl.cdiv(sizes[0], BLOCK_M), gl.cdiv(sizes[1], BLOCK_N)
    in_group = GROUP_M * tiles_n
    first_m = tile // in_group * GROUP_M
    high = gl.minimum(tiles_m - first_m, GROUP_M)
    return (first_m + tile % in_group % high) * BLOCK_M, tile % in_group // high * BLOCK_N


@gluon.jit
def _load(x, w, places, sizes):
    """Bring tiles as places for them become free."""
    x_tiles, w_tiles, full, empty = places
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    BLOCK_K: gl.constexpr = x_tiles.shape[2]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    count = 0
    for tile in range(gl.program_id(0), _count(sizes, BLOCK_M, BLOCK_N), gl.num_programs(0)):
        row, column = _place(tile, sizes, BLOCK_M, BLOCK_N)
        for k in range(0, sizes[2], BLOCK_K):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, (BLOCK_M + BLOCK_N) * BLOCK_K)
            tma.async_copy_global_to_shared(w, [column, k], bar, w_tiles.index(stage))
            tma.async_copy_global_to_shared(x, [row, k], bar, x_tiles.index(stage))
            count += 1


@gluon.jit
def _multiply(places, sizes, results, BIAS: gl.constexpr, num_warps: gl.constexpr):
    """Multiply what is brought, dequantize, write."""
    x_tiles, w_tiles, full, empty = places
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    BLOCK_K: gl.constexpr = x_tiles.shape[2]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    DOWN: gl.constexpr = num_warps if 16 * num_warps <= BLOCK_M else 4  # warps below each other, 16 rows each
    INSTRUCTION: gl.constexpr = min(128, BLOCK_N * DOWN // num_warps)  # Triton has none with 256 columns of int8
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [DOWN, num_warps // DOWN], [16, INSTRUCTION, 32])
    count = 0
    for tile in range(gl.program_id(0), _count(sizes, BLOCK_M, BLOCK_N), gl.num_programs(0)):
        sums = gl.zeros([BLOCK_M, BLOCK_N], gl.int32, LAYOUT)
        for k in range(0, sizes[2], BLOCK_K):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            sums = warpgroup_mma(x_tiles.index(stage), w_tiles.index(stage).permute((1, 0)), sums, is_async=True)
            sums = warpgroup_mma_wait(1, deps=[sums])  # the step before is done with its place
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=k > 0)
            count += 1
        sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
        row, column = _place(tile, sizes, BLOCK_M, BLOCK_N)
        _finish(sums, sizes, results, row, column, BIAS, LAYOUT)


@gluon.jit
def _finish(sums, sizes, results, row, column, BIAS: gl.constexpr, LAYOUT: gl.constexpr):
    """Dequantize a tile and write it."""
    BLOCK_M: gl.constexpr = sums.shape[0]
    BLOCK_N: gl.constexpr = sums.shape[1]
    x_scale, scale, bias, out = results
    rows = row + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT))
    columns = column + gl.arange(0, BLOCK_N, layout=gl.SliceLayout(0, LAYOUT))
    x_scales = gl.load(x_scale + rows, mask=rows < sizes[0], other=0.0)
    scales = gl.load(scale + columns, mask=columns < sizes[1], other=0.0)
    values = sums.to(gl.float32) * x_scales[:, None] * scales[None, :]
    if BIAS:
        values = values + gl.load(bias + columns, mask=columns < sizes[1], other=0.0).to(gl.float32)[None, :]
    at = out + rows.to(gl.int64)[:, None] * sizes[1] + columns[None, :]
    gl.store(at, values.to(out.dtype.element_ty), mask=(rows < sizes[0])[:, None] & (columns < sizes[1])[None, :])
