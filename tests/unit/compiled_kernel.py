"""A kernel compiled for a GPU that need not be here, by Triton and its own ptxas."""

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from ascend_quant.kernels.cuda.serve import triton_linear
from ascend_quant.kernels.tuned import HopperTiles, Tiles

SHARED = 99 << 10  # bytes that every GPU from sm80 on lets a program have
SHARED_OF_HOPPER = 227 << 10
LENGTH = 4096  # of a product's rows


def compiled(kernel, capability: int, constants: dict, types: dict[str, str], Source=ASTSource, **options):
    """Triton's kernel; what is neither a constant nor named in `types` is a 32-bit integer."""
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "i32") for name in names}
    aligned = [name for name in names if signature[name].startswith("*") or name in ("stride", "N", "K")]
    source = Source(
        kernel,
        signature,
        {(names.index(name),): value for name, value in constants.items() if name in names},
        {(names.index(name),): [["tt.divisibility", 16]] for name in aligned if signature[name] != "constexpr"},
    )
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def compiled_product(tiles: Tiles | HopperTiles, capability: int):
    """The int8 product with a bias, BF16 outputs, and K cut where the tiles say so."""
    kernel, matrices, constants, options, source = (_hopper if isinstance(tiles, HopperTiles) else _tiles)(tiles)
    types = {"x_scale": "*fp32", "scale": "*fp32", "bias": "*bf16", "out": "*bf16", "partial": "*i32"}
    types |= {"arrived": "*i32", **matrices}
    if not (constants.get("SPLIT") or constants.get("SHARED")):
        constants = constants | {name: None for name in ("partial", "arrived") if name in kernel.arg_names}
    return compiled(kernel, capability, constants, types, source, **options)


def _tiles(tiles: Tiles) -> tuple:
    x, w = (f"tensordesc<i8[{rows},{tiles.block_k}]>" for rows in (tiles.block_m, tiles.block_n))
    matrices = {"x": x, "w": w} if tiles.tma else {"x": "*i8", "w": "*i8"}
    constants = triton_linear.constants(tiles, LENGTH, True, tiles.split_k > 1)
    matrices["weights"] = "*i8"
    return triton_linear.int8_product_tiles, matrices, constants, triton_linear.options(tiles), ASTSource


def _hopper(tiles: HopperTiles) -> tuple:
    from triton.experimental.gluon._runtime import GluonASTSource

    from ascend_quant.kernels.cuda.serve import gluon_linear

    x, x_more, w = (
        f"tensordesc<i8[{rows}, {tiles.block_k}],{gluon_linear.layout(rows, tiles.block_k)!r}>"
        for rows in (tiles.block_m, tiles.more or tiles.block_m, tiles.block_n)
    )
    constants = gluon_linear.constants(tiles, True, tiles.stream_k) | {"num_warps": tiles.warps}
    matrices = {"x": x, "x_more": x_more, "w": w}
    return gluon_linear.int8_product_hopper, matrices, constants, gluon_linear.options(tiles), GluonASTSource
