"""A kernel compiled for a GPU that need not be here, by Triton and its own ptxas."""

import re
import subprocess
from pathlib import Path

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TOOL = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
SHARED = 99 << 10  # bytes that every GPU from sm80 on lets a program have


def compiled(kernel, capability: int, constants: dict, pointers: dict[str, str], folder: Path, **options):
    """Triton's kernel, and bytes of memory that each thread needs beside its registers.

    What is neither a constant nor a pointer is a 32-bit integer.
    """
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else pointers.get(name, "i32") for name in names}
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name in names if signature[name].startswith("*")}
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()}, aligned)
    found = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return found, memory_of(found, folder)


def memory_of(found, folder: Path) -> int:
    """Bytes that each thread of a compiled kernel needs beside its registers."""
    binary = folder / "kernel.cubin"
    binary.write_bytes(found.asm["cubin"])
    usage = subprocess.run([TOOL, "-res-usage", binary], capture_output=True, text=True, check=True).stdout
    return sum(map(int, re.search(r"STACK:(\d+) .*LOCAL:(\d+)", usage).groups()))
