"""The kernels that make codes of activations, compiled for three generations of GPUs: rows stay in registers.

Triton and its own ptxas need no GPU for that.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")

POINTERS = dict.fromkeys(("source", "residual", "weight", "total"), "*bf16") | {"codes": "*i8", "scales": "*fp32"}
FEW = 16  # bytes of memory a thread


def compiled(kernel, constants: dict, warps: int, capability: int, folder: Path) -> tuple[str, int]:
    """A kernel's PTX, and the memory that each of its threads needs beside registers."""
    import triton
    from compiled_kernel import memory_of
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = kernel.arg_names
    types = {**POINTERS, "stride": "i32", "eps": "fp32"}
    signature = {name: types.get(name, "constexpr") for name in names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(names) if name in POINTERS or name == "stride"}
    early = capability >= 90
    values = {(names.index(name),): value for name, value in {**constants, "EARLY": early}.items()}
    options = {"num_warps": warps, **({"launch_pdl": True} if early else {})}
    source = ASTSource(kernel, signature, values, aligned)
    built = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return built.asm["ptx"], memory_of(built, folder)


def vector_loads(ptx: str) -> int:
    """Loads of 16 bytes; there are no others."""
    loads = re.findall(r"ld\.global\S*\.v4\.b32", ptx)
    assert ptx.count("ld.global") == len(loads)
    return len(loads)


CAPABILITIES = pytest.mark.parametrize("capability", [80, 90, 100])


@CAPABILITIES
@pytest.mark.parametrize("columns", [2048, 3584, 5120, 18944, 27648])
def test_codes_alone(columns, capability, tmp_path):
    from ascend_quant.kernels import triton_tokens

    width, warps = triton_tokens.tiling(columns)
    ptx, memory = compiled(triton_tokens.quantize_rows, {"K": columns, "WIDTH": width}, warps, capability, tmp_path)
    assert memory <= FEW and vector_loads(ptx) * 8 * 32 * warps == width
    assert ptx.count("griddepcontrol.wait") == (capability >= 90)


@CAPABILITIES
@pytest.mark.parametrize("columns", [896, 2048, 3584, 5120, 8192, 16384])
def test_norms(columns, capability, tmp_path):
    from ascend_quant.kernels import triton_fused_tokens

    width = 1 << (columns - 1).bit_length()
    warps = triton_fused_tokens.warps_of_norm(width)
    constants = {"K": columns, "WIDTH": width, "ADD": True}
    ptx, memory = compiled(triton_fused_tokens.norm_rows, constants, warps, capability, tmp_path)
    assert memory <= FEW and vector_loads(ptx) * 8 * 32 * warps == 3 * width


@CAPABILITIES
@pytest.mark.parametrize("columns", [8192, 13824, 18944, 27648])
def test_silu_times_up(columns, capability, tmp_path):
    from ascend_quant.kernels import triton_fused_tokens, triton_tokens

    width, warps = triton_tokens.tiling(columns)
    constants = {"K": columns, "WIDTH": width}
    ptx, memory = compiled(triton_fused_tokens.silu_rows, constants, warps, capability, tmp_path)
    assert memory <= FEW and vector_loads(ptx) * 8 * 32 * warps == 2 * width
