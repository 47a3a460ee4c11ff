"""Kernels compiled for GPUs, which need not be here: they compile and can start, and the instructions that decide bits.

Registers are not counted: what they cost is seen by benchmarks.
"""

import re
from types import SimpleNamespace

import pytest

pytest.importorskip("triton")

import triton.language as tl
from compiled_kernel import SHARED, SHARED_OF_HOPPER, compiled, compiled_product
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from ascend_quant import qat
from ascend_quant.kernels import cache_pages
from ascend_quant.kernels.counters import SAMPLE, Counters
from ascend_quant.kernels.cuda.refit import (
    grouping,
    triton_groups,
    triton_rows,
    triton_shared_scales,
    triton_tiles,
    write,
)
from ascend_quant.kernels.cuda.serve import (
    linear_choice,
    triton_cache,
    triton_decode,
    triton_decoder,
    triton_experts,
    triton_extend,
    triton_fused_tokens,
    triton_grouped,
    triton_router,
    triton_routing,
    triton_sampling,
    triton_tokens,
)
from ascend_quant.kernels.tuned import HopperTiles, Tiles
from ascend_quant.schemes import get_scheme

GPUS = pytest.mark.parametrize("capability", [80, 90])
INT8_PRODUCT = {80: "mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.s8.s32", 90: "wgmma.mma_async.sync.aligned"}
QWEN = EXPERTS, WIDTH, HIDDEN, TOP = 128, 768, 2048, 8  # Qwen3-30B-A3B
EARLY = Tiles(64, 64, 128, 1, 4, 4, pdl=True)  # begins while the kernel before it ends


def early_if(capability: int) -> dict:
    """Options of a kernel that may begin while the one before it ends."""
    return {"launch_pdl": True} if capability >= 90 else {}


# ---- refits


@pytest.fixture
def hopper(monkeypatch):
    """What kernels are told of the GPU that they are compiled for: no driver can say it here."""
    target = GPUTarget("cuda", 90, 32)
    monkeypatch.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: target))


def written(kernel, names: tuple, values: tuple, options: dict):
    types = {"table": "*i64", "starts": "*i64", "totals": "*i64"}
    return compiled(kernel, 90, dict(zip(names, values, strict=True)), types, **options).asm["ptx"]


@pytest.mark.parametrize("kind", [kind for kind in write.KINDS if kind not in ("int4", "fp8_blocks")])
def test_writes_of_rows(kind, hopper):
    width, at_once, repeat, options = grouping.tiling(3584, kind)
    read = {"int8_float32": tl.float32, "int8_static": tl.float32}
    whole, target = 0, tl.bfloat16 if kind == "copy" else tl.int8
    if kind.endswith("prequantized"):
        whole, read[kind] = 3584, tl.int8
    values = (kind, read.get(kind, tl.bfloat16), target, 3584, whole, width, at_once, repeat, True, True)
    values += (Counters.SPREAD, SAMPLE)
    names = triton_rows.write_rows.arg_names[-len(values) :]
    assert written(triton_rows.write_rows, names, values, dict(options))


@pytest.mark.parametrize("group", [32, 128])
def test_writes_of_groups(group, hopper):
    values = (tl.bfloat16, 3584, group, True, True, Counters.SPREAD)
    assert written(triton_tiles.write_tiles, triton_tiles.write_tiles.arg_names[-6:], values, dict(grouping.TILES))


def test_fp8_is_converted_by_the_gpu(hopper):
    values = (tl.bfloat16, 3584, True, True, Counters.SPREAD, SAMPLE)
    code = written(
        triton_shared_scales.write_blocks, triton_shared_scales.write_blocks.arg_names[-6:], values, {"num_warps": 8}
    )
    assert "cvt.rn.satfinite.e4m3x2.f32" in code and code.count("div.rn.f32") == 1  # a reciprocal, no quotients


@pytest.mark.parametrize("name", qat.SCHEMES)
def test_fake_quantization_loses_no_nan_among_magnitudes(name):
    """It compares them as integers: a GPU's maximum of floats is the other one where one is NaN."""
    constants = triton_groups.constants_of(get_scheme(name), tl.bfloat16)
    types = {"source": "*bf16", "target": "*bf16"}
    code = compiled(triton_groups.fake_quantize_groups, 90, constants, types).asm["ptx"]
    assert "max.s32" in code and "max.f32" not in code


# ---- linear layers


def ptx_of_product(tiles, capability=90, most=SHARED_OF_HOPPER) -> str:
    made = compiled_product(tiles, capability)
    ptx = made.asm["ptx"]
    assert made.metadata.shared <= most and INT8_PRODUCT[capability] in ptx
    assert "fma.rn.f32" in ptx and "add.f32" not in ptx  # with the bias one rounding, as in vLLM's cutlass kernels
    return ptx


@GPUS
@pytest.mark.parametrize("rows", linear_choice.BY_ROWS)
def test_tiles_by_rule(rows, capability):
    for parts in (1, 2):
        ptx_of_product(linear_choice.BY_ROWS[rows]._replace(split_k=parts), capability, SHARED)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(("columns", "stages", "more"), [(128, 6, 0), (64, 7, 64)])
def test_hoppers_own_kernel(columns, stages, more, shared):
    ptx = ptx_of_product(HopperTiles(128, columns, 128, 8, stages, stream_k=shared, more=more))
    assert ("atom.global" in ptx) is shared  # programs of one tile count each other


@pytest.mark.parametrize("tma", [False, True])
def test_an_early_start_asks_for_weights_alone(tma):
    ptx = ptx_of_product(EARLY._replace(tma=tma, ahead=4))
    before, waits, after = ptx.partition("griddepcontrol.wait")
    assert waits and "prefetch.global.L2" in before and "prefetch.global.L2" not in after
    assert ("cp.async.bulk.tensor" in ptx) is tma
    assert "prefetch" not in ptx_of_product(EARLY._replace(pdl=False, ahead=4))


@pytest.mark.parametrize("late", [False, True])
def test_the_next_kernel_may_come_at_the_beginning_or_after_the_sums(late):
    before, calls, after = ptx_of_product(EARLY._replace(tma=True, late=late)).partition(
        "griddepcontrol.launch_dependents"
    )
    assert calls and "launch_dependents" not in after
    assert ("wgmma.mma_async" in before) is late and ("wgmma.mma_async" in after) is not late
    assert "st.global" not in before  # it does not wait for the values


@GPUS
def test_codes_of_tokens(capability):
    types = dict.fromkeys(("source", "residual", "weight", "total", "gate_rows", "up_rows"), "*bf16") | {
        "codes": "*i8",
        "scales": "*fp32",
    }
    types["eps"] = "fp32"
    width, warps = triton_tokens.tiling(5120)
    coded = {"ROUND": False, "CODED": True}
    for kernel, constants in (
        (triton_tokens.quantize_rows, {"K": 5120, "WIDTH": width}),
        (triton_fused_tokens.silu_rows, {"K": 5120, "WIDTH": width, **coded}),
        (triton_fused_tokens.norm_rows, {"K": 5120, "WIDTH": 8192, "ADD": True, **coded}),
    ):
        constants["EARLY"] = capability >= 90
        made = compiled(kernel, capability, constants, types, num_warps=warps, **early_if(capability))
        assert made.asm["ptx"].count("griddepcontrol.wait") == (capability >= 90)


# ---- mixtures of experts


EXPERT_TYPES = {
    "x": "*bf16", "x_codes": "*i8", "x_scale": "*fp32", "expert_at": "*i32", "local": "*i32", "pair_at": "*i32",
    "expert_of": "*i32", "w13": "*i8", "w13_scale": "*fp32", "h": "*fp32", "codes": "*i8", "scales": "*fp32",
    "h_codes": "*i8", "h_scale": "*fp32", "w2": "*i8", "w2_scale": "*fp32", "weight": "*fp32", "parts": "*bf16",
    "out": "*bf16", "counts": "*i32",
}  # fmt: skip


@GPUS
@pytest.mark.parametrize("tokens", [64, 1024])
def test_products_of_experts(capability, tokens):
    t, pdl = triton_experts.usual_tiles(QWEN, tokens), {"PDL": capability >= 90}
    up = {"K": HIDDEN, "WIDTH": WIDTH, "TOP": TOP, "BLOCK_M": t.block_m, "BLOCK_N": t.up_n, "BLOCK_K": t.up_k}
    down = {"N": HIDDEN, "K": WIDTH, "BLOCK_M": t.block_m, "BLOCK_N": t.down_n, "BLOCK_K": t.down_k}
    up |= {"GROUP_M": t.up_group, "SWAP": t.up_swap, **pdl}
    down |= {"GROUP_M": t.down_group, "SWAP": t.down_swap, **pdl}
    for kernel, constants, warps, stages in (
        (triton_grouped.gate_up, up, t.up_warps, t.up_stages),
        (triton_grouped.down, down, t.down_warps, t.down_stages),
    ):
        options = {"num_warps": warps, "num_stages": stages, **early_if(capability)}
        made = compiled(kernel, capability, constants, EXPERT_TYPES, **options)
        assert made.metadata.shared <= SHARED and "s32.s8.s8" in made.asm["ptx"]  # integer tensor cores


@GPUS
def test_the_kernels_between_them(capability):
    pdl = {"PDL": capability >= 90}
    counting = {"EXPERTS": EXPERTS, "GLOBAL": 0, "BINS": EXPERTS, "SEGMENT": triton_routing.LONGEST_SEGMENT, **pdl}
    sorting = {"K": HIDDEN, "WIDTH": HIDDEN, "TOP": TOP, "BLOCK_M": 16, **counting}
    combining = {"N": HIDDEN, "BLOCK_N": triton_experts.COMBINED, "EXPERTS": EXPERTS, "GLOBAL": 0, "TOP": TOP, **pdl}
    for kernel, constants, warps in (
        (triton_routing.count, counting, triton_experts.SORTING_WARPS),
        *((triton_routing.prepare, {**sorting, "COUNTED": c}, triton_experts.SORTING_WARPS) for c in (True, False)),
        (triton_grouped.quantize_pairs, {"K": WIDTH, "STEP": 256, **pdl}, 1),
        (triton_grouped.combine, combining, 2),
    ):
        assert compiled(kernel, capability, constants, EXPERT_TYPES, num_warps=warps)


@GPUS
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_router_sums_in_float32(capability, dtype):
    constants = {"N": EXPERTS, "K": HIDDEN, "BLOCK": triton_router.BLOCK, "BLOCK_K": triton_router.BLOCK_K}
    constants["PDL"] = capability >= 90
    options = {"num_warps": triton_router.WARPS, "num_stages": triton_router.STAGES, **early_if(capability)}
    types = dict.fromkeys(("x", "w", "out"), f"*{dtype}")
    made, taken = (
        compiled(triton_router.router_tiles, capability, constants, types, **options),
        dtype.replace("fp", "f"),
    )
    assert made.metadata.shared <= SHARED and f".f32.{taken}.{taken}.f32" in made.asm["ptx"]


@GPUS
def test_a_draw_divides_as_vllm_does(capability):
    """An approximate quotient would draw other tokens."""
    types = dict.fromkeys(("logits", "temperature", "noise", "best"), "*fp32") | {"token": "*i64"}
    constants = {"PART": triton_sampling.PART, "BLOCK": triton_sampling.BLOCK}
    made = compiled(triton_sampling.best_of_part, capability, constants, types, num_warps=triton_sampling.WARPS)
    assert made.metadata.shared <= SHARED and "div.rn.f32" in made.asm["ptx"]


# ---- an int8 cache


PARTS = dict.fromkeys(("part_sums", "part_tops", "part_weights"), "*fp32")
PLAN = dict.fromkeys(("lengths", "first_tile", "first_sequence", "block_table"), "*i32")
ATTEND = {"q": "*bf16", "cache": "*i8", "softmax_scale": "fp32", **PLAN, **PARTS}


@pytest.mark.parametrize(
    ("tiles", "layout", "group", "capability"),
    [
        (triton_decoder.SMALL, cache_pages.Layout(64, 4, 128), 7, 80),
        (triton_decoder.LARGE, cache_pages.Layout(128, 4, 128), 7, 90),
        (triton_decoder.CODES, cache_pages.Layout(128, 8, 128), 5, 90),
        (triton_decoder.WIDE, cache_pages.Layout(64, 2, 256), 8, 90),
    ],
)
def test_decodes(tiles, layout, group, capability):
    constants = triton_decoder.constants(layout, group, tiles)
    options = {"num_warps": tiles.warps, "maxnreg": tiles.registers} if tiles.registers else {"num_warps": tiles.warps}
    made = compiled(triton_decode.attend_shares, capability, constants, ATTEND, **options)
    products = "".join(re.findall(r"mma\.sync\S+", made.asm["ptx"]))
    assert made.metadata.shared * tiles.programs <= {80: 164 << 10, 90: SHARED_OF_HOPPER}[capability]
    assert ("m16n8k32" in products and "bf16" not in products) if tiles.codes else "bf16" in products


@GPUS
def test_chunks_the_writer_the_plan_and_the_merge(capability):
    constants = triton_extend.constants(cache_pages.Layout(64, 4, 128), 7, False)
    types = {"q": "*bf16", "out": "*bf16", "cache": "*i8", "softmax_scale": "fp32"}
    types |= dict.fromkeys(("block_table", "lengths", "starts"), "*i32")
    made = compiled(triton_extend.attend_chunks, capability, constants, types, num_warps=triton_extend.WARPS)
    assert made.metadata.shared <= SHARED
    sizes = {"HEADS": 4, "HEAD": 128, "PAGE": 64, "TOGETHER": 64, "ROWS": 4}
    types = {"key": "*bf16", "value": "*bf16", "cache": "*i8", "slots": "*i64"}
    assert compiled(triton_cache.write_tokens, capability, sizes, types, num_warps=1)
    assert compiled(triton_decode.plan_shares, capability, {"TILE": 64, "SEQUENCES": 256}, PLAN)
    merge = {"out": "*bf16", "first_tile": "*i32", **PARTS}
    assert compiled(triton_decode.merge_parts, capability, {"H": 28, "HEAD": 128}, merge, num_warps=1)
