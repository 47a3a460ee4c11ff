"""The CUDA kernels keep their numbers in registers: what spills to memory has cost a fifth of a refit's speed.

Compiled for Hopper by Triton and its own ptxas, which need no GPU.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
import triton.language as tl
from compiled_kernel import memory_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import driver

from ascend_quant.kernels import cuda, triton_rows, triton_tiles
from ascend_quant.kernels.moves import SAMPLE, Counters

HOPPER = GPUTarget("cuda", 90, 32)
FEW = 16  # bytes a thread
POINTERS = {"table": "*i64", "starts": "*i64", "totals": "*i64"}


@pytest.fixture(autouse=True)
def hopper():
    """What kernels are told of the GPU that they are compiled for: no driver can say it here."""
    before = driver._active
    driver.set_active(SimpleNamespace(get_current_target=lambda: HOPPER))
    yield
    driver._active = before


def stack_of_rows(kind: str, length: int, whole: int, folder: Path) -> int:
    """Bytes of memory that each thread of `write_rows` needs beside its registers."""
    width, at_once, repeat, options = cuda.tiling(length, kind)
    read = {"int8_exact": tl.float32, "int8_given": tl.float32, "codes": tl.int8, "fp8_codes": tl.int8}.get(
        kind, tl.bfloat16
    )
    target = {"copy": tl.bfloat16}.get(kind, tl.int8)
    constants = (kind, read, target, length, whole, width, at_once, repeat, True, True, Counters.SPREAD, SAMPLE)
    return stack_of(triton_rows.write_rows, constants, options, folder)


def stack_of(kernel, constants: tuple, options: tuple, folder: Path) -> int:
    return memory_of(compiled(kernel, constants, options), folder)


def compiled(kernel, constants: tuple, options: tuple):
    names = kernel.arg_names
    given = dict(zip(names[-len(constants) :], constants, strict=True))
    signature = {**dict.fromkeys(names, "constexpr"), **POINTERS, "pieces": "i32"}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in POINTERS}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in given.items()}, aligned)
    return triton.compile(source, target=HOPPER, options=dict(options))


@pytest.mark.parametrize(
    ("kind", "length", "whole"),
    [
        ("int8", 768, 0),
        ("int8", 2048, 0),
        ("int8", 3584, 0),
        ("int8", 5120, 0),
        ("int8", 27648, 0),
        ("int8", 9472, 18944),  # half of a row-parallel layer
        ("int8_exact", 768, 0),
        ("int8_exact", 2048, 0),
        ("int8_exact", 27648, 0),
        ("int8_exact", 9472, 18944),
        ("int8_given", 768, 0),
        ("int8_given", 5120, 0),
        ("int8_given", 27648, 0),
        ("fp8", 3584, 0),
        ("fp8", 5120, 0),
        ("fp8", 18944, 0),
        ("fp8_tensor", 18944, 0),
        ("copy", 3584, 0),
        ("codes", 768, 768),
        ("codes", 3584, 3584),
        ("codes", 27648, 27648),
        ("codes", 9472, 18944),
        ("fp8_codes", 3584, 3584),
        ("fp8_codes", 9472, 18944),
    ],
)
def test_a_kernel_keeps_its_numbers_in_registers(kind, length, whole, tmp_path):
    assert stack_of_rows(kind, length, whole, tmp_path) <= FEW


@pytest.mark.parametrize("group", [32, 128])
@pytest.mark.parametrize("read", [tl.bfloat16, tl.float32])
def test_tiles_keep_their_numbers_in_registers(group, read, tmp_path):
    constants = (read, 3584, group, True, True, Counters.SPREAD)
    assert stack_of(triton_tiles.write_tiles, constants, cuda.TILES, tmp_path) <= FEW


def test_fp8_is_converted_by_the_gpu():
    constants = (tl.bfloat16, 3584, True, True, Counters.SPREAD, SAMPLE)
    code = compiled(triton_rows.write_blocks, constants, (("num_warps", 8),)).asm["ptx"]
    assert "cvt.rn.satfinite.e4m3x2.f32" in code and code.count("div.rn.f32") == 1  # a reciprocal, no quotients
