"""Candidates of the autotuner (`tune`) for the int8 GEMM: vLLM's cutlass and the tiles of triton_linear.py."""

from collections.abc import Callable, Iterator

import torch

from ascend_quant.kernels.cuda.serve import triton_linear, triton_tokens
from ascend_quant.kernels.cuda.serve.linear_choice import takes_cutlass, tiles_of
from ascend_quant.kernels.engine_products import engine_product
from ascend_quant.kernels.tuned import Choice, HopperTiles, Tiles
from ascend_quant.schemes.arithmetic import dequantized_sums
from benchmarks.tune.search import least_seconds, shared_bytes

NAME = "linear"
SHAPES = [  # (N, K) of the layers on a single GPU: qkv, o, gate_up, down
    *[(4608, 3584), (3584, 3584), (37888, 3584), (3584, 18944)],  # Qwen2.5-7B
    *[(7168, 5120), (5120, 5120), (55296, 5120), (5120, 27648)],  # Qwen2.5-32B
    *[(5120, 2048), (2048, 4096)],  # Qwen3-30B-A3B
]
CUTLASS = {"by": "cutlass"}
HOPPER = (9, 0)
FEWEST_ROWS = 32  # minimum rows of torch._int_mm
BLOCKS = {  # by tokens per tile: (block_n, block_k, warps, stages)
    16: [(32, 256, 4, 6), (64, 256, 4, 4), (128, 128, 4, 4)],
    32: [(32, 256, 4, 6), (64, 256, 4, 4), (128, 128, 4, 4)],
    64: [
        (32, 256, 4, 4),
        (64, 128, 4, 4),
        (64, 128, 4, 6),
        (64, 256, 4, 3),
        (64, 256, 4, 5),
        (128, 128, 4, 4),
        (128, 256, 4, 4),
        (256, 128, 8, 4),
    ],
    128: [(64, 256, 8, 4), (128, 128, 8, 3), (128, 128, 8, 5), (128, 256, 8, 3), (256, 128, 8, 4)],
    256: [(64, 128, 8, 4), (128, 128, 8, 4)],
}
HOPPER_BLOCKS = {  # the same for gluon_linear, used for more than 64 tokens: (block_n, block_k, warps, stages)
    64: [(64, 128, 4, 12), (128, 128, 4, 8), (256, 128, 4, 5)],
    128: [(64, 128, 8, 8), (128, 128, 8, 6)],
    256: [(64, 128, 8, 5), (128, 128, 8, 4)],
}
HOPPER_BLOCKS_OF_192 = [(64, 128, 8, 7), (128, 128, 8, 5)]  # for tiles of 128 + 64 tokens
MANY_TOKENS = 64
FEW_TILES = 3  # per processor: with fewer whole tiles, many processors are idle at the end
AHEAD = (0, 4, 16)  # steps whose weights are prefetched


def candidates(shape: tuple[int, int], rows: int, capability: tuple[int, int], processors: int) -> list[Choice]:
    """Return the candidate choices for (rows, N, K); vLLM's kernel comes first, if it supports the shape.

    Args:
        processors: number of multiprocessors, which the programs should fill.
    """
    found = [CUTLASS] if takes_cutlass(shape, capability) else []
    for tiles in _tiles(shape, rows, capability, processors):
        found.append({"by": "triton", **tiles._asdict()})
    if capability == HOPPER and shape[1] % 16 == 0 and rows > MANY_TOKENS:
        found += ({"by": "hopper", **tiles._asdict()} for tiles in _hopper_tiles(shape, rows, processors))
    return found


def refined(choice: Choice, capability: tuple[int, int]) -> list[Choice]:
    """Return variants of a good choice."""
    early = choice["by"] == "triton" and capability >= HOPPER
    ways = [{"pdl": True, "ahead": steps, "late": late} for steps in AHEAD for late in (False, True)]
    return [{**choice, **way} for way in ways if early]


def compiled(choice: Choice) -> str:
    """Return the key that distinguishes compiled kernels; `split_k` and `ahead` count only as zero or nonzero."""
    some = {"split_k": choice.get("split_k", 1) > 1, "ahead": choice.get("ahead", 0) > 0}
    return repr(sorted({**choice, **some}.items()))


def wrong(call: Callable, choice: Choice) -> str | None:
    """Return how a result differs from the exact dequantization of int32 sums; None if it is bit-identical."""
    x, codes, x_scale, scale = call.inputs
    few = max(0, FEWEST_ROWS - x.shape[0])
    sums = torch._int_mm(torch.nn.functional.pad(x, (0, 0, 0, few)), codes[0].t())[: x.shape[0]]
    expected = dequantized_sums(sums.float(), x_scale.view(-1), scale.view(-1)).bfloat16()
    return None if torch.equal(call(choice, 0), expected) else "its result is not bit for bit the definition's"


def warm(choice: Choice, shape: tuple[int, int], rows: int) -> None:
    """Compile the kernels of a choice, with the smallest tensors that do."""
    tiles = tiles_of(choice)
    if tiles is None:
        return
    length = shape[1] if shape[1] % tiles.block_k else max(2, choice.get("split_k", 1)) * tiles.block_k
    x = torch.zeros(tiles.block_m, length, dtype=torch.int8, device="cuda")
    w = torch.zeros(tiles.block_n, length, dtype=torch.int8, device="cuda")
    x_scale, scale = (torch.ones(side, 1, device="cuda") for side in (tiles.block_m, tiles.block_n))
    triton_linear.int8_product(x, w, x_scale, scale, None, torch.bfloat16, tiles)


def copy_bytes(shape: tuple[int, int]) -> int:
    """Return how many bytes of weights a GEMM reads."""
    return shape[0] * shape[1]


def floor(shape: tuple[int, int], rows: int, gpu: str) -> float | None:
    """Return a lower bound in seconds: each byte read once, or all multiplications; None for unknown GPUs."""
    columns, length = shape
    moved = columns * length + rows * length + 2 * rows * columns
    return least_seconds(gpu, moved, 2 * rows * columns * length)


def prepare(shape: tuple[int, int], rows: int, copies: int) -> Callable[[Choice | None, int], torch.Tensor]:
    """Return a function that quantizes activations and runs the GEMM with a choice and one copy of the weights.

    As in an engine, the GEMM may start while the quantization still runs. Without a choice only the quantization runs.
    """
    columns, length = shape
    draw = {"device": "cuda", "generator": torch.Generator(device="cuda").manual_seed(columns + length + rows)}
    codes = [torch.randint(-127, 128, (columns, length), dtype=torch.int8, **draw) for _ in range(copies)]
    source = torch.randn(rows, length, **draw).bfloat16()
    scale = torch.rand(columns, 1, **draw)

    def call(choice: Choice | None, copy: int) -> torch.Tensor:
        x, x_scale = triton_tokens.quantize_tokens(source)
        return x if choice is None else product(choice, x, codes[copy], x_scale, scale)

    x, x_scale = triton_tokens.quantize_tokens(source)
    call.inputs = (x, codes, x_scale, scale)
    return call


def product(choice: Choice, x_codes_MK, codes_NK, x_scale_M1, scale_N1) -> torch.Tensor:
    """Compute the GEMM in BF16, with a choice."""
    tiles = tiles_of(choice)
    if tiles is None:
        return engine_product("int8_linear")(x_codes_MK, codes_NK, x_scale_M1, scale_N1, None, torch.bfloat16)
    return triton_linear.int8_product(x_codes_MK, codes_NK, x_scale_M1, scale_N1, None, torch.bfloat16, tiles)


def _tiles(shape, rows, capability, processors) -> Iterator[Tiles]:
    columns, length = shape
    shared = shared_bytes(capability)
    for block_m in _rows_of_tiles(rows):
        for block_n, block_k, warps, stages in BLOCKS[block_m]:
            if stages * (block_m + block_n) * block_k > shared:
                continue
            programs = -(-rows // block_m) * -(-columns // block_n)
            for split in _splits(programs, length // block_k, processors):
                tma = capability >= HOPPER and length % 16 == 0
                yield Tiles(block_m, block_n, block_k, split, warps, stages, tma=tma)


def _hopper_tiles(shape: tuple[int, int], rows: int, processors: int) -> Iterator[HopperTiles]:
    found = [HopperTiles(block_m, *rest) for block_m in _rows_of_tiles(rows) for rest in HOPPER_BLOCKS[block_m]]
    if rows > 128 and -(-rows // 192) * 192 == -(-rows // 64) * 64:  # every warp group has rows
        found += [HopperTiles(128, *rest, more=64) for rest in HOPPER_BLOCKS_OF_192]
    for tiles in found:
        yield tiles
        if -(-rows // tiles.rows) * -(-shape[0] // tiles.block_n) < FEW_TILES * processors:
            yield tiles._replace(stream_k=True)


def _rows_of_tiles(rows: int) -> list[int]:
    """Return the candidate tokens per tile; up to 64, limited by the number of tokens (in powers of two)."""
    if rows <= 64:
        return [next(size for size in (16, 32, 64) if size >= rows)]
    return [64, 128] if rows <= 128 else [64, 128, 256] if rows <= 512 else [128, 256]


def _splits(programs: int, steps: int, processors: int) -> list[int]:
    """Return candidate splits of K: none, or as many as make the programs about as many as the processors."""
    return sorted({1, *(split for split in (2, 3, 4) if steps >= 4 * split and split * programs <= 1.2 * processors)})
