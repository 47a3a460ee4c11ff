"""Candidates of the autotuner (`tune`) for int8 experts: tiles of triton_experts.py. vLLM's kernels round in more
places, and are not among them.

Both products are tried with the same tiles first; the best choices are then tried with other tiles for `down`.
"""

from collections.abc import Callable, Iterator

import torch

from ascend_quant import oracle
from ascend_quant.kernels.cuda.serve import triton_experts
from ascend_quant.kernels.tuned import Choice, GroupedTiles
from benchmarks.tune.search import least_seconds, shared_bytes

NAME = "experts"
SHAPES = [(128, 768, 2048, 8)]  # experts, width, hidden size and top_k on a single GPU: Qwen3-30B-A3B
HOPPER = (9, 0)
FEW = {  # by pairs per block, if memory-bound; (n, k, warps, stages)
    16: [(64, 256, 4, 3), (128, 256, 4, 3), (64, 128, 4, 4), (128, 128, 4, 3)],
    32: [(64, 256, 4, 3), (64, 128, 4, 3), (64, 128, 4, 4), (128, 128, 4, 3)],
}
MANY = {  # if compute-bound
    64: [(128, 128, 4, 3), (128, 128, 4, 4), (128, 128, 8, 4), (256, 64, 4, 4)],
    128: [(128, 128, 4, 3), (128, 64, 4, 4), (128, 128, 8, 3), (256, 128, 8, 4)],
}
GROUPED = 8  # blocks of pairs that share weights in the cache
ERROR = 0.006  # relative to the norm: each expert's output and their sum are rounded to BF16
FEW_ENOUGH = 512  # tokens for which the oracle is fast enough
Shape = tuple[int, int, int, int]


def candidates(shape: Shape, rows: int, capability: tuple[int, int], processors: int) -> list[Choice]:
    """Return the candidate choices for a fused MoE (experts, width, hidden, top) and this many tokens."""
    sizes = _block_sizes(shape, rows)
    return [{"by": "triton", **tiles._asdict()} for block_m in sizes for tiles in _tiles(block_m, capability)]


def refined(choice: Choice, capability: tuple[int, int]) -> list[Choice]:
    """Return variants of a good choice: other tiles for `down`, and an early start."""
    one = {**choice, "pdl": capability >= HOPPER}
    others = [tiles for tiles in _tiles(choice["block_m"], capability) if tiles.up_swap == choice["up_swap"]]
    downs = [{name: value for name, value in tiles._asdict().items() if name.startswith("down")} for tiles in others]
    return [{**one, **down} for down in downs]


def compiled(choice: Choice) -> str:
    """Return the key that distinguishes compiled kernels."""
    return repr(sorted(choice.items()))


def wrong(call: Callable, choice: Choice) -> str | None:
    """Return what is wrong with the result, compared with the oracle's or, where that takes long, with other tiles'."""
    x, weight, expert, w13, s13, w2, s2 = call.inputs
    found = call(choice, 0).float()
    if x.shape[0] > FEW_ENOUGH:
        return (
            None
            if torch.equal(found, call(call.usual, 0).float())
            else "its result is not bit for bit that of the default tiles"
        )
    expected = oracle.experts(x, weight, expert, w13[0], s13[0].flatten(1), w2[0], s2[0].flatten(1))
    error = float((found - expected).norm() / expected.norm())
    return None if error < ERROR else f"an error of {error:.1e} of the norm"


def warm(choice: Choice, shape: Shape, rows: int) -> None:
    """Compile the kernels of a choice, with a fused MoE without tokens."""
    experts, width, hidden, top = shape
    w13 = torch.empty(experts, 2 * width, hidden, dtype=torch.int8, device="cuda")
    w2 = torch.empty(experts, hidden, width, dtype=torch.int8, device="cuda")
    scales = (torch.empty(experts, size, 1, device="cuda") for size in (2 * width, hidden))
    x, weight = torch.zeros(1, hidden, dtype=torch.bfloat16, device="cuda"), torch.zeros(1, top, device="cuda")
    nobody = torch.full((1, top), -1, dtype=torch.int32, device="cuda")
    triton_experts.mixture(
        x, weight, nobody, w13, next(scales), w2, next(scales), None, triton_experts.tiles_of(choice)
    )


def copy_bytes(shape: Shape) -> int:
    """Return how many bytes of weights a fused MoE may read."""
    experts, width, hidden, _ = shape
    return 3 * experts * width * hidden


def floor(shape: Shape, rows: int, gpu: str) -> float | None:
    """Return a lower bound in seconds: reading the weights of the routed experts, or all multiplications."""
    experts, _, _, top = shape
    reached = 1 - (1 - top / experts) ** rows
    one = copy_bytes(shape) / experts
    return least_seconds(gpu, reached * copy_bytes(shape), 2 * rows * top * one)


def prepare(shape: Shape, rows: int, copies: int) -> Callable[[Choice | None, int], torch.Tensor]:
    """Return a function that computes the fused MoE by a choice, with one copy of the weights, behind a small kernel.

    Without a choice, that kernel runs alone.
    """
    experts, width, hidden, top = shape
    generator = torch.Generator(device="cuda").manual_seed(rows)
    draw = {"device": "cuda", "generator": generator}

    def codes(*size: int) -> list[torch.Tensor]:
        return [torch.randint(-127, 128, size, dtype=torch.int8, **draw) for _ in range(copies)]

    def scales(*size: int) -> list[torch.Tensor]:
        return [torch.rand(size, **draw) * 1e-3 for _ in range(copies)]

    w13, s13 = codes(experts, 2 * width, hidden), scales(experts, 2 * width, 1)
    w2, s2 = codes(experts, hidden, width), scales(experts, hidden, 1)
    source = torch.randn(rows, hidden, **draw).bfloat16()
    x = source.clone()
    weight, expert = torch.softmax(torch.randn(rows, experts, **draw), -1).topk(top, -1)
    expert = expert.int()

    def call(choice: Choice | None, copy: int) -> torch.Tensor:
        torch.mul(source, 1.0, out=x)
        if choice is None:
            return x
        stacks = (w13[copy], s13[copy], w2[copy], s2[copy])
        return triton_experts.mixture(x, weight, expert, *stacks, None, triton_experts.tiles_of(choice))

    call.inputs = (source, weight, expert, w13, s13, w2, s2)
    call.usual = {"by": "triton", **triton_experts.usual_tiles(shape, rows)._asdict()}
    return call


def _block_sizes(shape: Shape, rows: int) -> list[int]:
    """Return sizes of a block of pairs worth trying: about as many as an expert has, or the next size."""
    pairs_each = rows * shape[3] / shape[0]
    sizes = [*FEW, *MANY]
    first = next((i for i, size in enumerate(sizes) if size >= pairs_each), len(sizes) - 1)
    return sizes[max(0, first - 1) : first + 2]


def _tiles(block_m: int, capability: tuple[int, int]) -> Iterator[GroupedTiles]:
    shared = shared_bytes(capability)
    group = 1 if block_m in FEW else GROUPED
    for swap in (False, True) if block_m in FEW and capability == HOPPER else (False,):
        for n, k, warps, stages in FEW.get(block_m) or MANY[block_m]:
            if stages * (block_m + n) * k <= shared:
                same = (n, k, warps, stages, group, swap)
                yield GroupedTiles(block_m, *same, *same, False)
