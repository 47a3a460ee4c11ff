"""The Triton kernel as compiled for Hopper: one read and one write of the weight, and all numbers in registers.

Triton and its own ptxas need no GPU for that.
"""

import re

import pytest
import triton
import triton.language as tl
from compiled_kernel import memory_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ascend_quant.kernels import triton_groups
from ascend_quant.schemes import get_scheme


@pytest.mark.parametrize(("name", "columns"), [("int4_g32", 2048), ("int4_g128", 2048), ("int8", 2048), ("int8", 9472)])
def test_the_compiled_kernel(name, columns, tmp_path):
    scheme = get_scheme(name)
    constants = triton_groups.constants_of(columns, scheme, tl.bfloat16, given=False)
    kernel = triton_groups.fake_quantize_rows
    names = kernel.arg_names
    pointers = {"source": "*bf16", "target": "*bf16", "absmax": "*fp32"}
    signature = {**dict.fromkeys(names, "constexpr"), **pointers, "count": "i32"}
    values = {(names.index(key),): value for key, value in constants.items()}
    aligned = {(names.index(key),): [["tt.divisibility", 16]] for key in pointers}
    compiled = triton.compile(ASTSource(kernel, signature, values, aligned), target=GPUTarget("cuda", 90, 32))

    assert memory_of(compiled, tmp_path) == 0

    moved = dict.fromkeys(("ld", "st"), 0)  # bits, by all threads of a program
    for way, modes, bits in re.findall(r"(ld|st)\.global([.:\w]*)\.b(\d+)", compiled.asm["ptx"]):
        vector = re.search(r"\.v(\d)", modes)
        moved[way] += 32 * compiled.metadata.num_warps * int(bits) * int(vector[1] if vector else 1)
    tile = 16 * constants["ROWS"] * constants["WIDTH"] * -(-constants["LENGTH"] // constants["WIDTH"])  # bits
    once = constants["LENGTH"] <= constants["WIDTH"]
    assert moved["st"] == tile and (moved["ld"] == tile if once else tile < moved["ld"] <= 2 * tile)
    assert "max.NaN.f32" in compiled.asm["ptx"]  # no NaN is lost among magnitudes, which the interpreter cannot show
