"""A token's int8 results have the same bits alone and among others: sums of int8 products are exact in any order.

Kernels choose their tiles by the number of tokens, so each batch here takes the tiles of its own size.
"""

from collections.abc import Callable
from importlib import import_module

import pytest
import torch

from ascend_quant import oracle
from ascend_quant.kernels.cpu import serve as cpu_serving
from ascend_quant.kernels.cuda.serve import linear_choice

BATCHES = (1, 7, 64)
EXPERTS, TOP, HIDDEN, WIDTH = 5, 2, 96, 48
PROCESSORS = 132  # of an H100; by them tiles are shared


def seeded(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def same_in_every_batch(compute: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> bool:
    """Whether the first rows come out of every batch as they come out alone, whatever place they have in it."""
    alone = [compute(*(part[row : row + 1] for part in inputs)) for row in range(3)]
    for size in BATCHES:
        for row, expected in enumerate(alone):
            place = size - 1 if row else 0
            order = [other for other in range(size) if other != row][: size - 1]
            order.insert(place, row)
            found = compute(*(part[order] for part in inputs))[place : place + 1]
            if not torch.equal(found, expected):
                return False
    return True


def x_of(columns: int, dtype=torch.bfloat16) -> torch.Tensor:
    return seeded(1, max(BATCHES) + 1, columns).to(dtype)


def layer(rows: int = 80, columns: int = 200) -> tuple[torch.Tensor, torch.Tensor]:
    return oracle.quantize_weight(seeded(2, rows, columns))


def stacks() -> tuple[torch.Tensor, ...]:
    w13, w2 = seeded(3, EXPERTS, 2 * WIDTH, HIDDEN), seeded(4, EXPERTS, HIDDEN, WIDTH)
    return *oracle.quantize_weight(w13), *oracle.quantize_weight(w2)


def routed() -> tuple[torch.Tensor, torch.Tensor]:
    logits = seeded(5, max(BATCHES) + 1, EXPERTS).softmax(-1)
    weight, expert = logits.topk(TOP)
    return weight, expert.int()


def test_the_check_sees_a_result_that_depends_on_the_batch():
    x = x_of(16)
    assert same_in_every_batch(lambda x: x * 2, x)
    assert not same_in_every_batch(lambda x: x + x.shape[0], x)
    assert not same_in_every_batch(lambda x: x - x.mean(0), x)


def test_layers_on_a_cpu():
    codes, scale = layer()
    assert same_in_every_batch(lambda x: cpu_serving.matmul(x, codes, scale), x_of(200))


def test_experts_on_a_cpu():
    experts = cpu_serving.SERVING["int8"].experts
    assert same_in_every_batch(lambda x, w, e: experts(x, w, e, *stacks(), None), x_of(HIDDEN), *routed())


@pytest.mark.parametrize("split", [1, 3])
def test_layers_in_triton(cuda, split):
    linear = import_module("ascend_quant.kernels.cuda.serve.triton_linear")
    codes, scale = (part.to(cuda.device) for part in layer())

    def compute(x):
        x_codes, x_scale = import_module("ascend_quant.kernels.cuda.serve.triton_tokens").quantize_tokens(
            x.to(cuda.device)
        )
        tiles = linear_choice.tiles_by_rule(*codes.shape, x.shape[0], PROCESSORS)
        shared = tiles._replace(split_k=split if x.shape[0] > 1 else 1, block_n=32, block_k=32)
        return linear.int8_product(x_codes, codes, x_scale, scale.view(-1, 1), None, x.dtype, shared).cpu()

    assert same_in_every_batch(compute, x_of(200))


def test_experts_in_triton(cuda):
    experts = import_module("ascend_quant.kernels.cuda.serve.triton_experts").experts
    on_device = [part.to(cuda.device) for part in stacks()]

    def compute(x, weight, expert):
        given = (part.to(cuda.device) for part in (x, weight, expert))
        return experts(*given, *on_device, None).cpu()

    assert same_in_every_batch(compute, x_of(HIDDEN), *routed())


def test_norms_and_gates_that_quantize_in_triton(cuda):
    fused = import_module("ascend_quant.kernels.cuda.serve.triton_fused_tokens")
    norm = seeded(6, 128).to(torch.bfloat16).to(cuda.device)

    def bits(codes, scale, *more):
        return torch.cat(
            [part.cpu().contiguous().view(torch.int8).view(part.shape[0], -1) for part in (codes, scale)], 1
        )

    assert same_in_every_batch(lambda x: bits(*fused.rms_norm_quantize(x.to(cuda.device), norm, 1e-6)), x_of(128))
    assert same_in_every_batch(lambda x: bits(*fused.silu_mul_quantize(x.to(cuda.device))), x_of(256))


def test_a_routers_product_for_few_tokens_in_triton(cuda):
    router = import_module("ascend_quant.kernels.cuda.serve.triton_router")
    weight = seeded(7, 20, 300).to(torch.bfloat16).to(cuda.device)
    assert same_in_every_batch(lambda x: router.product(x.to(cuda.device), weight).cpu(), x_of(300))
