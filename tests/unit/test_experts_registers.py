"""The kernels of the mixture of experts compile for three generations of GPUs, and keep their numbers in registers.

Triton and its own ptxas need no GPU for that.
"""

import pytest
from compiled_kernel import SHARED, compiled

from ascend_quant.kernels import triton_experts, triton_grouped, triton_routing

SHAPE = EXPERTS, WIDTH, HIDDEN, TOP = 128, 768, 2048, 8  # Qwen3-30B-A3B
FEW = 104  # bytes a thread, at the end of a program; four warps with them are faster than eight without
POINTERS = {
    "x": "*bf16", "x_codes": "*i8", "x_scale": "*fp32", "expert_at": "*i32", "local": "*i32", "pair_at": "*i32",
    "expert_of": "*i32", "w13": "*i8", "w13_scale": "*fp32", "h": "*fp32", "codes": "*i8", "scales": "*fp32",
    "h_codes": "*i8", "h_scale": "*fp32", "w2": "*i8", "w2_scale": "*fp32", "weight": "*fp32", "parts": "*bf16",
    "out": "*bf16", "counts": "*i32",
}  # fmt: skip


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("tokens", [64, 256, 1024, 8192])
def test_products(capability, tokens, tmp_path):
    tiles = triton_experts.usual_tiles(SHAPE, tokens)
    pdl = {"PDL": capability >= 90}
    started = {"launch_pdl": True} if capability >= 90 else {}
    up = {"K": HIDDEN, "WIDTH": WIDTH, "TOP": TOP, "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.up_n}
    up |= {"BLOCK_K": tiles.up_k, "GROUP_M": tiles.up_group, "SWAP": tiles.up_swap, **pdl}
    down = {"N": HIDDEN, "K": WIDTH, "BLOCK_M": tiles.block_m, "BLOCK_N": tiles.down_n}
    down |= {"BLOCK_K": tiles.down_k, "GROUP_M": tiles.down_group, "SWAP": tiles.down_swap, **pdl}
    for kernel, constants, warps, stages in (
        (triton_grouped.gate_up, up, tiles.up_warps, tiles.up_stages),
        (triton_grouped.down, down, tiles.down_warps, tiles.down_stages),
    ):
        found, spilled = compiled(
            kernel, capability, constants, POINTERS, tmp_path, num_warps=warps, num_stages=stages, **started
        )
        assert spilled <= (FEW if tiles.block_m == 128 else 0)
        assert found.metadata.shared <= SHARED
        assert "s32.s8.s8" in found.asm["ptx"]  # integer tensor cores


@pytest.mark.parametrize("capability", [80, 90, 100])
def test_the_kernels_between_them(capability, tmp_path):
    pdl = {"PDL": capability >= 90}
    routing = {"EXPERTS": EXPERTS, "GLOBAL": 0, "TOP": TOP}
    counting = {"EXPERTS": EXPERTS, "GLOBAL": 0, "BINS": EXPERTS, "SEGMENT": triton_routing.LONGEST_SEGMENT, **pdl}
    sorting = {"K": HIDDEN, "WIDTH": HIDDEN, "TOP": TOP, "BLOCK_M": 16}
    for kernel, constants, warps in (
        (triton_routing.count, counting, triton_experts.SORTING_WARPS),
        (triton_routing.prepare, {**sorting, **counting, "COUNTED": True}, triton_experts.SORTING_WARPS),
        (triton_routing.prepare, {**sorting, **counting, "COUNTED": False}, triton_experts.SORTING_WARPS),
        (triton_grouped.quantize_pairs, {"K": WIDTH, "STEP": 256, **pdl}, 1),
        (triton_grouped.combine, {"N": HIDDEN, "BLOCK_N": triton_experts.COMBINED, **routing, **pdl}, 2),
    ):
        _, spilled = compiled(kernel, capability, constants, POINTERS, tmp_path, num_warps=warps)
        assert spilled == 0
