"""Persistent, warp-specialized W8A8 GEMM for Hopper and many tokens: one warp loads tiles by TMA, the others multiply.
One program per multiprocessor loops over tiles.

Triton's own pipeline waits for the int8 products of one step before it starts the next, and for the output of one tile
before it loads the next tile's weights; this kernel does not. Its numerics are those of triton_linear.py.

If programs share a tile (shared_tiles.py), each stores int32 sums in a workspace, and the last one to finish adds them.

A tile has BLOCK_M tokens, plus MORE (HopperTiles.more) that read the same weights: for 160 tokens, three tiles of 64
would read the weights three times from the L2 cache.
"""

from functools import cache

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ascend_quant.kernels.cuda.serve.gluon_shares import count_of, part_of, sharers_of
from ascend_quant.kernels.cuda.serve.shared_tiles import Grid, counters, grid_of
from ascend_quant.kernels.tuned import HopperTiles

LOADER_WARPS, LOADER_REGISTERS = gl.constexpr(1), gl.constexpr(40)
WARP_GROUP = gl.constexpr(64)  # tokens that four warps multiply; MORE is this or 0
# Gluon's names change with Triton: the first exists up to Triton 3.6, the second from 3.9 on.
all_threads = getattr(gl, "thread_barrier", None) or gl.barrier
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


def launch(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, out_MN, tiles: HopperTiles) -> None:
    """Fill `out_MN`; K must be a multiple of 16."""
    (rows, length), columns = x_codes_MK.shape, codes_NK.shape[0]
    x, w = _described(x_codes_MK, tiles.block_m, tiles), _described(codes_NK, tiles.block_n, tiles)
    x_more = _described(x_codes_MK, tiles.more, tiles) if tiles.more else x
    grid = grid_of(tiles, rows, columns, length, _processors(out_MN.device))
    partial, arrived = _workspace(tiles, grid, out_MN.device)
    tensors = (x, x_more, w, x_scale_M1, scale_N1, bias_N, out_MN, partial, arrived)
    given = constants(tiles, bias_N is not None, grid.shared)
    int8_product_hopper[(grid.programs,)](*tensors, rows, columns, length, **given, **options(tiles))


def _described(codes: torch.Tensor, rows: int, tiles: HopperTiles) -> TensorDescriptor:
    """Return a TMA descriptor of a matrix that is read in tiles of this many rows."""
    return TensorDescriptor.from_tensor(codes, [rows, tiles.block_k], layout(rows, tiles.block_k))


def _workspace(tiles: HopperTiles, grid: Grid, device: torch.device) -> tuple[torch.Tensor | None, ...]:
    """Return int32 sums for two tiles of each program, its first and its last one, and a counter for each tile."""
    if not grid.shared:
        return None, None
    partial = torch.empty(2 * grid.programs * tiles.rows * tiles.block_n, dtype=torch.int32, device=device)
    return partial, counters(device)


def layout(rows: int, block_k: int) -> gl.NVMMASharedLayout:
    """Return the shared memory layout of a tile (rows, block_k) of int8 codes, swizzled for WGMMA."""
    return gl.NVMMASharedLayout.get_default_for([rows, block_k], gl.int8)


def options(tiles: HopperTiles) -> dict[str, int | bool]:
    """Return the launch options: warps, and no fused multiply-add."""
    return {"num_warps": tiles.warps, "enable_fp_fusion": False}


def constants(tiles: HopperTiles, with_bias: bool, shared: bool) -> dict[str, int | bool]:
    """Return the kernel's constants."""
    blocks = {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n, "BLOCK_K": tiles.block_k}
    return {**blocks, "MORE": tiles.more, "STAGES": tiles.stages, "SHARED": shared, "BIAS": with_bias}


@cache
def _processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit(do_not_specialize=["M"])
def int8_product_hopper(
    x,
    x_more,  # the same with tiles of MORE rows; equals x if MORE is 0
    w,
    x_scale,
    scale,
    bias,
    out,
    partial,  # int32 (programs, 2, BLOCK_M + MORE, BLOCK_N)
    arrived,
    M,
    N,
    K,
    BLOCK_M: gl.constexpr,
    BLOCK_N: gl.constexpr,
    BLOCK_K: gl.constexpr,
    MORE: gl.constexpr,
    STAGES: gl.constexpr,
    SHARED: gl.constexpr,
    BIAS: gl.constexpr,
    num_warps: gl.constexpr,
):
    x_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_M, BLOCK_K], x.layout)
    more_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, MORE, BLOCK_K], x_more.layout) if MORE else x_tiles
    w_tiles = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_N, BLOCK_K], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    places, sizes = (x_tiles, more_tiles, w_tiles, full, empty), (M, N, K)
    results, shared = (x_scale, scale, bias, out), (partial, arrived)
    gl.warp_specialize(
        [
            (_multiply, (places, sizes, results, shared, MORE, SHARED, BIAS, num_warps)),
            (_load, (x, x_more, w, places, sizes, MORE, SHARED)),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )


@gluon.jit
def _load(x, x_more, w, places, sizes, MORE: gl.constexpr, SHARED: gl.constexpr):
    """Load tiles as their buffers become free."""
    x_tiles, more_tiles, w_tiles, full, empty = places
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    BLOCK_K: gl.constexpr = x_tiles.shape[2]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    ROWS: gl.constexpr = BLOCK_M + MORE
    count = 0
    for i in range(count_of(sizes, ROWS, BLOCK_N, BLOCK_K, SHARED)):
        m, n, first, last = part_of(i, sizes, ROWS, BLOCK_N, BLOCK_K, SHARED)
        for step in range(first, last):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
            bar = full.index(stage)
            mbarrier.expect(bar, (ROWS + BLOCK_N) * BLOCK_K)
            load_tile(w, [n * BLOCK_N, step * BLOCK_K], bar, w_tiles.index(stage))
            load_tile(x, [m * ROWS, step * BLOCK_K], bar, x_tiles.index(stage))
            if MORE:
                at = [m * ROWS + BLOCK_M, step * BLOCK_K]
                load_tile(x_more, at, bar, more_tiles.index(stage))
            count += 1


@gluon.constexpr_function
def _sums_layout(rows, columns, warps):
    """Return the layout of int32 sums (rows, columns): all warps along the rows, or 4 if there are too few rows."""
    down = warps if 16 * warps <= rows else 4
    instruction = min(128, columns * down // warps)  # Triton has none with 256 columns of int8
    return gl.NVMMADistributedLayout([3, 0], [down, warps // down], [16, instruction, 32])


@gluon.jit
def _multiply(
    places,
    sizes,
    results,
    shared,
    MORE: gl.constexpr,
    SHARED: gl.constexpr,
    BIAS: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Multiply the loaded tiles, dequantize and write."""
    x_tiles, more_tiles, w_tiles, full, empty = places
    STAGES: gl.constexpr = x_tiles.shape[0]
    BLOCK_M: gl.constexpr = x_tiles.shape[1]
    BLOCK_K: gl.constexpr = x_tiles.shape[2]
    BLOCK_N: gl.constexpr = w_tiles.shape[1]
    ROWS: gl.constexpr = BLOCK_M + MORE
    LAYOUT: gl.constexpr = _sums_layout(BLOCK_M, BLOCK_N, num_warps)
    LAYOUT_MORE: gl.constexpr = _sums_layout(WARP_GROUP, BLOCK_N, num_warps)
    count = 0
    for i in range(count_of(sizes, ROWS, BLOCK_N, BLOCK_K, SHARED)):
        m, n, first, last = part_of(i, sizes, ROWS, BLOCK_N, BLOCK_K, SHARED)
        sums = gl.zeros([BLOCK_M, BLOCK_N], gl.int32, LAYOUT)
        more = gl.zeros([WARP_GROUP, BLOCK_N], gl.int32, LAYOUT_MORE)
        for step in range(first, last):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            w_tile = w_tiles.index(stage).permute((1, 0))
            sums = warpgroup_mma(x_tiles.index(stage), w_tile, sums, is_async=True)
            if MORE:  # the previous step has released its buffer
                more = warpgroup_mma(more_tiles.index(stage), w_tile, more, is_async=True)
                sums, more = warpgroup_mma_wait(2, deps=[sums, more])
            else:
                sums = warpgroup_mma_wait(1, deps=[sums])
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > first)
            count += 1
        if MORE:
            sums, more = warpgroup_mma_wait(0, deps=[sums, more])
        else:
            sums = warpgroup_mma_wait(0, deps=[sums])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
        complete = last - first == gl.cdiv(sizes[2], BLOCK_K)
        if SHARED:  # noqa: SIM102  a constant is not joined with what is none
            if not complete:
                sums, more, complete = _added(
                    sums, more, sizes, shared, m, n, first, BLOCK_K, MORE, LAYOUT, LAYOUT_MORE
                )
        if complete:
            _finish(sums, sizes, results, m * ROWS, n * BLOCK_N, BIAS, LAYOUT)
            if MORE:
                _finish(more, sizes, results, m * ROWS + BLOCK_M, n * BLOCK_N, BIAS, LAYOUT_MORE)


@gluon.jit
def _added(
    sums,
    more,
    sizes,
    shared,
    m,
    n,
    first,
    BLOCK_K: gl.constexpr,
    MORE: gl.constexpr,
    LAYOUT: gl.constexpr,
    LAYOUT_MORE: gl.constexpr,
):
    """Store a program's int32 sums of a tile (stream-K); the last one adds up all. Return whether it is the last."""
    BLOCK_M: gl.constexpr = sums.shape[0]
    BLOCK_N: gl.constexpr = sums.shape[1]
    PLACE: gl.constexpr = (BLOCK_M + MORE) * BLOCK_N
    partial, arrived = shared
    inside = _inside(BLOCK_M, BLOCK_N, LAYOUT)
    inside_more = BLOCK_M * BLOCK_N + _inside(WARP_GROUP, BLOCK_N, LAYOUT_MORE)
    own = gl.program_id(0) * 2 + (first == 0).to(gl.int32)  # a program has the first step of one tile at most
    gl.store(partial + own.to(gl.int64) * PLACE + inside, sums)
    if MORE:
        gl.store(partial + own.to(gl.int64) * PLACE + inside_more, more)

    tiles_m, tiles_n = gl.cdiv(sizes[0], BLOCK_M + MORE), gl.cdiv(sizes[1], BLOCK_N)
    begins, ends = sharers_of(n, sizes, BLOCK_M + MORE, BLOCK_N, BLOCK_K)
    all_threads()  # every thread has written its sums before one of them signals
    is_last = gl.atomic_add(arrived + m * tiles_n + n, 1, sem="acq_rel") == ends - begins
    if is_last:
        for sharer in range(begins, ends + 1):
            theirs = (sharer * tiles_m + m) * 2 + (sharer == begins).to(gl.int32)
            if theirs != own:
                at = partial + theirs.to(gl.int64) * PLACE
                sums += gl.load(at + inside, cache_modifier=".cg")
                if MORE:
                    more += gl.load(at + inside_more, cache_modifier=".cg")
        gl.store(arrived + m * tiles_n + n, 0)
    return sums, more, is_last


@gluon.jit
def _inside(ROWS: gl.constexpr, COLUMNS: gl.constexpr, LAYOUT: gl.constexpr):
    """Return the offsets of sums (ROWS, COLUMNS) in row-major order."""
    rows, columns = gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT)), gl.arange(0, COLUMNS, gl.SliceLayout(0, LAYOUT))
    return rows[:, None] * COLUMNS + columns[None, :]


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
    values = sums.to(gl.float32) * scales[None, :]
    if BIAS:
        biases = gl.load(bias + columns, mask=columns < sizes[1], other=0.0).to(gl.float32)
        values = gl.fma(values, x_scales[:, None], biases[None, :])
    else:
        values = values * x_scales[:, None]
    at = out + rows.to(gl.int64)[:, None] * sizes[1] + columns[None, :]
    gl.store(at, values.to(out.dtype.element_ty), mask=(rows < sizes[0])[:, None] & (columns < sizes[1])[None, :])
