"""The int8 product's kernels compiled for a GPU that need not be here, by Triton and its own ptxas."""

from pathlib import Path
from typing import NamedTuple

import triton
from compiled_kernel import memory_of
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ascend_quant.kernels import triton_linear
from ascend_quant.kernels.tuned import HopperTiles, Tiles

LENGTH = 4096


class Compiled(NamedTuple):
    """What the machine code needs: bytes of stack a thread, of shared memory a program; and its PTX."""

    stack: int
    shared: int
    ptx: str


def compiled(tiles: Tiles | HopperTiles, capability: int, folder: Path) -> Compiled:
    """With a bias, BF16 outputs, and K cut where the tiles say so."""
    if isinstance(tiles, HopperTiles):
        return _hopper(tiles, folder)
    constants = triton_linear.constants(tiles, LENGTH, True, tiles.split_k > 1)
    x, w = (f"tensordesc<i8[{rows},{tiles.block_k}]>" for rows in (tiles.block_m, tiles.block_n))
    matrices = {"x": x, "w": w} if tiles.tma else {"x": "*i8", "w": "*i8"}
    matrices["weights"] = "*i8"
    options = triton_linear.options(tiles)
    return _compiled(ASTSource, triton_linear.int8_product_tiles, matrices, constants, options, capability, folder)


def _hopper(tiles: HopperTiles, folder: Path) -> Compiled:
    from triton.experimental.gluon._runtime import GluonASTSource

    from ascend_quant.kernels import gluon_linear

    x, x_more, w = (
        f"tensordesc<i8[{rows}, {tiles.block_k}],{gluon_linear.layout(rows, tiles.block_k)!r}>"
        for rows in (tiles.block_m, tiles.more or tiles.block_m, tiles.block_n)
    )
    constants = gluon_linear.constants(tiles, True, tiles.stream_k) | {"num_warps": tiles.warps}
    kernel, options = gluon_linear.int8_product_hopper, gluon_linear.options(tiles)
    return _compiled(GluonASTSource, kernel, {"x": x, "x_more": x_more, "w": w}, constants, options, 90, folder)


def _compiled(Source, kernel, matrices, constants, options, capability, folder) -> Compiled:
    names = kernel.arg_names
    pointers = {"x_scale": "*fp32", "scale": "*fp32", "bias": "*bf16", "out": "*bf16"}
    pointers |= {"partial": "*i32", "arrived": "*i32"} if constants.get("SPLIT") or constants.get("SHARED") else {}
    signature = {**dict.fromkeys(names, "constexpr"), **matrices, **pointers}
    signature |= {name: "i32" for name in ("M", "N", "K", "split", "ahead") if name in names}
    constants = constants | {name: None for name in ("partial", "arrived") if name in names and name not in pointers}
    aligned = [name for name in names if signature[name].startswith("*") or name in ("N", "K")]
    source = Source(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items()},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned},
    )
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return Compiled(memory_of(made, folder), made.metadata.shared, made.asm["ptx"])
