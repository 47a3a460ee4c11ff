"""The grouped products of triton_grouped.py for Hopper and many pairs an expert, where the products count.

Codes lie sorted, place by place, so that TMA brings them as it brings weights: one warp loads, two warpgroups multiply,
and neither waits for the other's step. Programs stay, and take every so manieth (block, tile); those at work at one
time share weights and codes in the cache. A tile's columns are two halves: gate and up, or neighbours.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ascend_quant.kernels.gluon_grouped import BLOCK_K, LOADER_REGISTERS, LOADER_WARPS, layout, processors

BLOCK_M, HALF, STAGES, WARPS = 128, 128, 4, 8


def launch(codes, scales, w_codes_ENK, w_scale, weight, out, places, pairs: int, top: int) -> None:
    """As `gluon_grouped.launch`, with codes (places, K)."""
    rows, length = w_codes_ENK.shape[1:]
    a = TensorDescriptor.from_tensor(codes, [BLOCK_M, BLOCK_K], layout(BLOCK_M))
    w = TensorDescriptor.from_tensor(w_codes_ENK.view(-1, length), [HALF, BLOCK_K], layout(HALF))
    tensors = (a, scales, w, w_scale, scales if weight is None else weight, out, *places)
    sorted_hopper[(processors(out.device),)](
        *tensors, pairs, places[1].shape[0] - 1, **constants(rows, length, top, weight is None),
        num_warps=WARPS, enable_fp_fusion=False,
    )  # fmt: skip


def constants(rows: int, length: int, top: int, gated: bool) -> dict[str, object]:
    """The kernel's constants."""
    return {"N": rows, "K": length, "TOP": top, "STAGES": STAGES, "GATED": gated}


@gluon.jit(do_not_specialize=["pairs", "blocks"])
def sorted_hopper(
    a,
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
    TOP: gl.constexpr,  # pairs that share a scale
    STAGES: gl.constexpr,
    GATED: gl.constexpr,
    num_warps: gl.constexpr,
):
    BLOCK_M: gl.constexpr = a.block_shape[0]
    HALF: gl.constexpr = w.block_shape[0]
    BLOCK_K: gl.constexpr = w.block_shape[1]
    STEPS: gl.constexpr = (K + BLOCK_K - 1) // BLOCK_K
    TILES: gl.constexpr = (N + 2 * HALF - 1) // (2 * HALF)
    a_ring = gl.allocate_shared_memory(gl.int8, [STAGES, BLOCK_M, BLOCK_K], a.layout)
    w_ring = gl.allocate_shared_memory(gl.int8, [2 * STAGES, HALF, BLOCK_K], w.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=1)
    gl.warp_specialize(
        [
            (
                _multiply,
                (scales, w_scale, weight, out, pair_at, expert_of, pairs, blocks, a_ring, w_ring, full, empty,
                 N, TOP, STEPS, TILES, GATED, num_warps),
            ),
            (_load, (a, w, expert_of, blocks, a_ring, w_ring, full, empty, N, STEPS, TILES, GATED)),
        ],
        [LOADER_WARPS],
        [LOADER_REGISTERS],
    )  # fmt: skip


@gluon.jit
def _load(
    a,
    w,
    expert_of,
    blocks,
    a_ring,
    w_ring,
    full,
    empty,
    N: gl.constexpr,
    STEPS: gl.constexpr,
    TILES: gl.constexpr,
    GATED: gl.constexpr,
):
    """Bring codes and weights as places for them become free."""
    BLOCK_M: gl.constexpr = a_ring.shape[1]
    HALF: gl.constexpr = w_ring.shape[1]
    BLOCK_K: gl.constexpr = w_ring.shape[2]
    STAGES: gl.constexpr = full.shape[0]
    count = 0
    for work in range(gl.program_id(0), gl.load(expert_of + blocks) * TILES, gl.num_programs(0)):
        block = work // TILES
        row = gl.load(expert_of + block) * N + work % TILES * (HALF if GATED else 2 * HALF)
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(empty.index(stage), (count // STAGES & 1) ^ 1)
            bar, at = full.index(stage), step * BLOCK_K
            mbarrier.expect(bar, (BLOCK_M + 2 * HALF) * BLOCK_K)
            tma.async_copy_global_to_shared(a, [block * BLOCK_M, at], bar, a_ring.index(stage))
            tma.async_copy_global_to_shared(w, [row, at], bar, w_ring.index(2 * stage))
            other = row + (N // 2 if GATED else HALF)
            tma.async_copy_global_to_shared(w, [other, at], bar, w_ring.index(2 * stage + 1))
            count += 1


@gluon.jit
def _multiply(
    scales,
    w_scale,
    weight,
    out,
    pair_at,
    expert_of,
    pairs,
    blocks,
    a_ring,
    w_ring,
    full,
    empty,
    N: gl.constexpr,
    TOP: gl.constexpr,
    STEPS: gl.constexpr,
    TILES: gl.constexpr,
    GATED: gl.constexpr,
    num_warps: gl.constexpr,
):
    """Multiply what is brought, dequantize, write."""
    BLOCK_M: gl.constexpr = a_ring.shape[1]
    HALF: gl.constexpr = w_ring.shape[1]
    STAGES: gl.constexpr = full.shape[0]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, HALF, 32])
    count = 0
    for work in range(gl.program_id(0), gl.load(expert_of + blocks) * TILES, gl.num_programs(0)):
        low = gl.zeros([BLOCK_M, HALF], gl.int32, LAYOUT)
        high = gl.zeros([BLOCK_M, HALF], gl.int32, LAYOUT)
        for step in range(STEPS):
            stage = count % STAGES
            mbarrier.wait(full.index(stage), count // STAGES & 1)
            low = warpgroup_mma(a_ring.index(stage), w_ring.index(2 * stage).permute((1, 0)), low, is_async=True)
            high = warpgroup_mma(a_ring.index(stage), w_ring.index(2 * stage + 1).permute((1, 0)), high, is_async=True)
            low, high = warpgroup_mma_wait(2, deps=[low, high])
            mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES), pred=step > 0)
            count += 1
        low, high = warpgroup_mma_wait(0, deps=[low, high])
        mbarrier.arrive(empty.index((count + STAGES - 1) % STAGES))
        block = work // TILES
        scale_at = w_scale + gl.load(expert_of + block).to(gl.int64) * N
        _finish(low, high, scales, scale_at, weight, out, pair_at + block * BLOCK_M, pairs, work % TILES, N, TOP, GATED)


@gluon.jit
def _finish(
    low, high, scales, w_scale, weight, out, pair_at, pairs, tile, N: gl.constexpr, TOP: gl.constexpr,
    GATED: gl.constexpr,
):  # fmt: skip
    """Dequantize both halves; write silu(gate) * up, or their product with the routing weights."""
    BLOCK_M: gl.constexpr = low.shape[0]
    HALF: gl.constexpr = low.shape[1]
    LAYOUT: gl.constexpr = low.type.layout
    pair = gl.load(pair_at + gl.arange(0, BLOCK_M, layout=gl.SliceLayout(1, LAYOUT)))
    valid = pair < pairs
    scale = gl.load(scales + pair // TOP, mask=valid, other=0.0).expand_dims(1)
    within = gl.arange(0, HALF, layout=gl.SliceLayout(0, LAYOUT))
    if GATED:
        WIDTH: gl.constexpr = N // 2
        column = tile * HALF + within
        inside = column < WIDTH
        gate = low.to(gl.float32) * scale * gl.load(w_scale + column, mask=inside, other=0.0).expand_dims(0)
        up = high.to(gl.float32) * scale * gl.load(w_scale + WIDTH + column, mask=inside, other=0.0).expand_dims(0)
        at = out + pair.to(gl.int64).expand_dims(1) * WIDTH + column.expand_dims(0)
        gl.store(at, gl.div_rn(gate, 1.0 + gl.exp(-gate)) * up, mask=valid.expand_dims(1) & inside.expand_dims(0))
    else:
        routing = gl.load(weight + pair, mask=valid, other=0.0).to(gl.float32).expand_dims(1)
        column = tile * (2 * HALF) + within
        _write(low, scale, w_scale, routing, out, pair, valid, column, N)
        _write(high, scale, w_scale, routing, out, pair, valid, column + HALF, N)


@gluon.jit
def _write(sums, scale, w_scale, routing, out, pair, valid, column, N: gl.constexpr):
    """Some columns of the weighted outputs."""
    part = sums.to(gl.float32) * scale * gl.load(w_scale + column, mask=column < N, other=0.0).expand_dims(0) * routing
    at = out + pair.to(gl.int64).expand_dims(1) * N + column.expand_dims(0)
    gl.store(at, part.to(out.dtype.element_ty), mask=valid.expand_dims(1) & (column < N).expand_dims(0))
