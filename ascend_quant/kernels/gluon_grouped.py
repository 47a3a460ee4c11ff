"""The grouped products of triton_grouped.py for Hopper and few pairs an expert, where only the weights' bytes count.

Programs stay, and each takes a stretch of (block, tile) pairs. One warp brings weights by TMA into a ring of tiles,
without a pause between one tile of the output and the next. The others keep a block's codes, all K of them, in shared
memory, and multiply. A tile's rows are two halves: gate and up, or neighbours.
"""

from functools import cache

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOADER_WARPS, LOADER_REGISTERS = gl.constexpr(1), gl.constexpr(40)
HALF, BLOCK_K = 64, 128  # rows of half a tile: those of wgmma; columns: as wide as a swizzled tile may be
WARPS = 4
REGISTERS = 128  # a thread: half of what there are, so that small kernels find room beside
SHARED = 227 << 10  # bytes that a program may have


def stages_of(length: int, block_m: int) -> int:
    """How many tiles of weights find room beside a block's codes."""
    codes = triton.cdiv(length, BLOCK_K) * BLOCK_K * block_m
    return min(12, (SHARED - (6 << 10) - codes) // (2 * HALF * BLOCK_K))


def launch(codes, scales, w_codes_ENK, w_scale, weight, out, places, pairs: int, top: int, block_m: int):
    """Fill `out` (pairs, N / 2) as `gate_up` does, or (pairs, N) as `down` does where `weight` is given.

    K must be a multiple of 16.
    """
    rows, length = w_codes_ENK.shape[1:]
    descriptor = TensorDescriptor.from_tensor(w_codes_ENK.view(-1, length), [HALF, BLOCK_K], layout(HALF))
    tensors = (codes, scales, descriptor, w_scale, scales if weight is None else weight, out, *places)
    grouped_hopper[(processors(out.device),)](
        *tensors, pairs, places[1].shape[0] - 1, **constants(rows, length, top, block_m, weight is None),
        num_warps=WARPS, maxnreg=REGISTERS, enable_fp_fusion=False,
    )  # fmt: skip


def layout(rows: int) -> gl.NVMMASharedLayout:
    """How a tile (rows, BLOCK_K) of codes lies in shared memory."""
    return gl.NVMMASharedLayout.get_default_for([rows, BLOCK_K], gl.int8)


def constants(rows: int, length: int, top: int, block_m: int, gated: bool) -> dict[str, object]:
    """The kernel's constants."""
    return {
        "N": rows,
        "K": length,
        "TOP": top,
        "BLOCK_M": block_m,
        "STAGES": stages_of(length, block_m),
        "CODES": layout(block_m),
        "GATED": gated,
    }


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


@gluon.jit(do_not_specialize=["pairs", "blocks"])
def grouped_hopper(
    codes,
    scales,
    w,
    w_scale,
    weight,
    out,
    pair_at,
    expert_of,
    pairs,
    blocks,
    N: gl.constexpr,  # rows of an expert's weight
    K: gl.constexpr,
    TOP: gl.constexpr,  # pairs that share a row of codes
    BLOCK_M: gl.constexpr,
    STAGES: gl.constexpr,
    CODES: gl.constexpr,  # layout of a block's codes
    GATED: gl.constexpr,
    num_warps: gl.constexpr,
):
    HALF: gl.constexpr = w.block_shape[0]
    BLOCK_K: gl.constexpr = w.block_shape[1]
    STEPS: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    TILES: gl.constexpr = (N + 2 * HALF - 1) // (2 * HALF)
    block_codes = gl.allocate_shared_memory(gl.int8, [STEPS, BLOCK_M, BLOCK_K], CODES)
    ring = gl.allocate_shared_memory(gl.int8, [2 * STAGES, HALF, BLOCK_K], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (
                _multiply,
                (codes, scales, w_scale, weight, out, pair_at, expert_of, pairs, blocks, block_codes, ring, full, empty,
                 N, K, TOP, TILES, GATED, num_warps),
            ),
            (_load, (w, expert_of, blocks, ring, full, empty, N, STEPS, TILES, GATED)),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _stretch(expert_of, blocks, TILES: gl.constexpr):
    """The first (block, tile) of this program, and the one behind its last."""
    works = gl.load(expert_of + blocks) * TILES
    program, programs = gl.program_id(0), gl.num_programs(0)
    return works * program // programs, works * (program + 1) // programs


@gluon.jit
def _load(
    w,
    expert_of,
    blocks,
    ring,
    full,
    empty,
    N: gl.constexpr,
    STEPS: gl.constexpr,
    TILES: gl.constexpr,
    GATED: gl.constexpr,
):
    """Bring weights as places for them become free."""
    HALF: gl.constexpr = ring.shape[1]
    BLOCK_K: gl.constexpr = ring.shape[2]
    STAGES: gl.constexpr = full.shape[0]
    first, last = _stretch(expert_of, blocks, TILES)
    count = 0
    for work in range(first, last):
        row = gl.load(expert_of + work // TILES) * N + work % TILES * (HALF if GATED else 2 * HALF)
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(stage), 2 * HALF * BLOCK_K)
            at = step * BLOCK_K
            tma.async_copy_global_to_shared(w, [row, at], full.index(stage), ring.index(2 * stage))
            other = row + (N // 2 if GATED else HALF)
            tma.async_copy_global_to_shared(w, [other, at], full.index(stage), ring.index(2 * stage + 1))
            count += 1


@gluon.jit
def _multiply(
    codes,
    scales,
    w_scale,
    weight,
    out,
    pair_at,
    expert_of,
    pairs,
    blocks,
    block_codes,
    ring,
    full,
    empty,
    N: gl.constexpr,
    K: gl.constexpr,
    TOP: gl.constexpr,
    TILES: gl.constexpr,
    GATED: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Multiply what is brought with the block's codes; write silu(gate) * up, or the product times routing weights."""
    STEPS: gl.constexpr = block_codes.shape[0]
    BLOCK_M: gl.constexpr = block_codes.shape[1]
    HALF: gl.constexpr = ring.shape[1]
    STAGES: gl.constexpr = full.shape[0]
    COLUMNS: gl.constexpr = N // 2 if GATED else N  # of the output
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, BLOCK_M, 32])
    LINES: gl.constexpr = gl.BlockedLayout([4, 1], [16, 2], [1, num_warps], [0, 1])
    first, last = _stretch(expert_of, blocks, TILES)
    count, before = 0, -1
    for work in range(first, last):
        block = work // TILES
        if block != before:
            _bring(codes, block_codes, pair_at + block * BLOCK_M, pairs, K, TOP, num_warps)
        before = block
        # asked for here, they are there when the sums are
        pair = gl.load(pair_at + block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, LAYOUT)))
        factor = gl.load(scales + pair // TOP, mask=pair < pairs, other=0.0)
        if not GATED:
            routing = gl.load(weight + pair, mask=pair < pairs, other=0.0).to(gl.float32)
        of_expert = w_scale + gl.load(expert_of + block).to(gl.int64) * N
        row = work % TILES * (HALF if GATED else 2 * HALF) + gl.arange(0, HALF, layout=gl.SliceLayout(1, LAYOUT))
        low_scale = gl.load(of_expert + row, mask=row < COLUMNS, other=0.0)
        row += N // 2 if GATED else HALF
        high_scale = gl.load(of_expert + row, mask=row < N, other=0.0)
        target = gl.load(pair_at + block * BLOCK_M + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(0, LINES)))

        low = gl.zeros([HALF, BLOCK_M], gl.int32, LAYOUT)
        high = gl.zeros([HALF, BLOCK_M], gl.int32, LAYOUT)
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            rows = block_codes.index(step).permute((1, 0))
            low = warpgroup_mma(ring.index(2 * stage), rows, low, is_async=True)
            high = warpgroup_mma(ring.index(2 * stage + 1), rows, high, is_async=True)
            low, high = warpgroup_mma_wait(2, deps=[low, high])
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
            count += 1
        low, high = warpgroup_mma_wait(0, deps=[low, high])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))

        low_product = low.to(gl.float32) * factor.expand_dims(0) * low_scale.expand_dims(1)
        high_product = high.to(gl.float32) * factor.expand_dims(0) * high_scale.expand_dims(1)
        if GATED:
            h = gl.div_rn(low_product, 1.0 + gl.exp(-low_product)) * high_product
            _write(h, out, target, pairs, work % TILES * HALF, COLUMNS, LINES)
        else:
            column = work % TILES * (2 * HALF)
            _write(low_product * routing.expand_dims(0), out, target, pairs, column, COLUMNS, LINES)
            _write(high_product * routing.expand_dims(0), out, target, pairs, column + HALF, COLUMNS, LINES)


@gluon.jit
def _bring(codes, block_codes, pair_at, pairs, K: gl.constexpr, TOP: gl.constexpr, num_warps: gl.constexpr):
    """Gather the codes of a block's pairs; places without a pair get zeros."""
    STEPS: gl.constexpr = block_codes.shape[0]
    BLOCK_M: gl.constexpr = block_codes.shape[1]
    BLOCK_K: gl.constexpr = block_codes.shape[2]
    LINES: gl.constexpr = gl.BlockedLayout([1, 16], [4, 8], [num_warps, 1], [1, 0])
    pair = gl.load(pair_at + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LINES)))
    row = codes + (pair // TOP).to(gl.int64) * K
    gl.thread_barrier()  # nobody multiplies the last block's any more
    for step in gl.static_range(STEPS):
        k = step * BLOCK_K + gl.arange(0, BLOCK_K, layout=gl.SliceLayout(0, LINES))
        inside = (pair < pairs).expand_dims(1) & (k < K).expand_dims(0)
        async_copy.async_copy_global_to_shared(
            block_codes.index(step), row.expand_dims(1) + k.expand_dims(0), mask=inside
        )
    async_copy.commit_group()
    async_copy.wait_group(0)
    fence_async_shared()
    gl.thread_barrier()


@gluon.jit
def _write(values_NM, out, pair, pairs, first, COLUMNS: gl.constexpr, LINES: gl.constexpr):
    """Put some columns of a block's pairs where they belong, side by side."""
    HALF: gl.constexpr = values_NM.shape[0]
    values = gl.convert_layout(values_NM.to(out.dtype.element_ty), LINES)
    column = first + gl.arange(0, HALF, layout=gl.SliceLayout(1, LINES))
    at = out + pair.to(gl.int64).expand_dims(0) * COLUMNS + column.expand_dims(1)
    gl.store(at, values, mask=(pair < pairs).expand_dims(0) & (column < COLUMNS).expand_dims(1))
