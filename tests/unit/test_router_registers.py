"""The router's product and the draw compile for three generations of GPUs, and keep their numbers in registers.

Triton and its own ptxas need no GPU for that.
"""

import pytest
from compiled_kernel import SHARED, compiled

from ascend_quant.kernels import triton_router, triton_sampling

CAPABILITIES = pytest.mark.parametrize("capability", [80, 90, 100])
EXPERTS, HIDDEN = 128, 2048  # Qwen3-30B-A3B


@CAPABILITIES
@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_router(capability, dtype, tmp_path):
    early = capability >= 90
    constants = {"N": EXPERTS, "K": HIDDEN, "BLOCK": triton_router.BLOCK, "BLOCK_K": triton_router.BLOCK_K}
    started = {"launch_pdl": True} if early else {}
    pointers = dict.fromkeys(("x", "w", "out"), f"*{dtype}")
    found, spilled = compiled(
        triton_router.router_tiles, capability, constants | {"PDL": early}, pointers, tmp_path,
        num_warps=triton_router.WARPS, num_stages=triton_router.STAGES, **started,
    )  # fmt: skip
    assert spilled == 0
    assert found.metadata.shared <= SHARED
    taken = dtype.replace("fp", "f")
    assert f".f32.{taken}.{taken}.f32" in found.asm["ptx"]  # tensor cores that sum in float32


@CAPABILITIES
def test_draw(capability, tmp_path):
    pointers = dict.fromkeys(("logits", "temperature", "noise", "best"), "*fp32") | {"token": "*i64"}
    constants = {"PART": triton_sampling.PART, "BLOCK": triton_sampling.BLOCK}
    found, spilled = compiled(
        triton_sampling.best_of_part, capability, constants, pointers, tmp_path, num_warps=triton_sampling.WARPS
    )
    assert spilled == 0
    assert found.metadata.shared <= SHARED
    assert "div.rn.f32" in found.asm["ptx"]  # as vLLM divides; an approximate one would draw other tokens
