"""The mixture of int8 experts on a GPU: the shape of Qwen3-30B-A3B and odd ones, started early or not, in graphs.

Most of the time goes into compiling, so tests share shapes where they can.
"""

import pytest
import torch

from ascend_quant import oracle

pytest.importorskip("triton")
pytestmark = pytest.mark.gpu

ERROR = 0.006  # of the norm: parts and their sum are rounded to BF16
QWEN, SMALL, TINY = (128, 768, 2048, 8), (8, 160, 288, 2), (3, 64, 144, 3)  # experts, width, hidden, top
HOPPER = (9, 0)


def stacks(experts: int, width: int, hidden: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device="cuda").manual_seed(width)
    draw = {"device": "cuda", "generator": generator}
    w13 = torch.randint(-127, 128, (experts, 2 * width, hidden), dtype=torch.int8, **draw)
    w2 = torch.randint(-127, 128, (experts, hidden, width), dtype=torch.int8, **draw)
    scales = [torch.rand(experts, size, 1, **draw) * 1e-3 + 1e-4 for size in (2 * width, hidden)]
    return w13, scales[0], w2, scales[1]


def routed(tokens: int, experts: int, top: int, hidden: int) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator(device="cuda").manual_seed(tokens)
    draw = {"device": "cuda", "generator": generator}
    weight, expert = torch.softmax(torch.randn(tokens, experts, **draw), -1).topk(top, -1)
    return torch.randn(tokens, hidden, **draw).bfloat16(), weight, expert.int()


def expected(x, weight, expert, w13, s13, w2, s2) -> torch.Tensor:
    return oracle.experts(x, weight, expert, w13, s13.squeeze(-1), w2, s2.squeeze(-1))


def error_of(found: torch.Tensor, right: torch.Tensor) -> float:
    return float((found.float() - right).norm() / right.norm())


def ways(shape: tuple[int, int, int, int], tokens: int) -> list:
    """The usual tiles, with and without an early start."""
    from ascend_quant.kernels.cuda.serve import triton_experts

    usual = triton_experts.usual_tiles(shape, tokens)
    early = usual._replace(pdl=True)
    return [usual, early] if torch.cuda.get_device_capability() >= HOPPER else [usual]


@pytest.mark.parametrize(
    ("shape", "tokens", "block_m"),
    [(QWEN, 1, 16), (QWEN, 64, 16), (TINY, 1, 16), (SMALL, 64, 32), (SMALL, 300, 64), (TINY, 300, 128)],
    ids=str,
)
def test_every_way_gives_the_same_bits_near_the_oracle(shape, tokens, block_m):
    from ascend_quant.kernels.cuda.serve import triton_experts

    experts, width, hidden, top = shape
    given, weights = routed(tokens, experts, top, hidden), stacks(experts, width, hidden)
    first, *others = ways(shape, tokens)
    assert first.block_m == block_m
    found = triton_experts.mixture(*given, *weights, None, first)
    assert error_of(found, expected(*given, *weights)) < ERROR
    for tiles in others:
        assert torch.equal(triton_experts.mixture(*given, *weights, None, tiles), found), tiles


def test_a_captured_graph_serves_every_routing():
    from ascend_quant.kernels.cuda.serve import triton_experts

    experts, width, hidden, top = SMALL
    weights = stacks(experts, width, hidden)
    for tiles in ways(SMALL, 64):
        x, weight, expert = (part.clone() for part in routed(64, experts, top, hidden))
        triton_experts.mixture(x, weight, expert, *weights, None, tiles)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):  # one behind the other, as layers are
                found = triton_experts.mixture(x, weight, expert, *weights, None, tiles)
        for seed in range(5):
            torch.manual_seed(seed)
            x.normal_()
            expert.copy_(torch.stack([torch.randperm(experts)[:top] for _ in range(64)]))
            if seed == 4:
                expert.fill_(3)  # all for one expert
            graph.replay()
            once = found.clone()
            graph.replay()
            assert torch.equal(found, once)
            assert error_of(found, expected(x, weight, expert, *weights)) < ERROR, (tiles, seed)


def test_experts_of_other_ranks():
    from ascend_quant.kernels import cuda

    local = torch.full((32,), -1, dtype=torch.int32, device="cuda")
    local[torch.randperm(32, device="cuda")[:8]] = torch.arange(8, dtype=torch.int32, device="cuda")
    x, weight, expert = routed(60, 32, 4, 256)
    weights = stacks(8, 128, 256)
    found = cuda.experts(x, weight, expert, *weights, local)
    assert error_of(found, expected(x, weight, local[expert.long()], *weights)) < ERROR
    nobody = (local[expert.long()] < 0).all(-1)
    assert not found[nobody].any()


def test_many_tokens_give_what_few_give():
    from ascend_quant.kernels.cuda.serve import triton_experts

    experts, width, hidden, top = QWEN
    given, weights = routed(4096, experts, top, hidden), stacks(experts, width, hidden)
    found = triton_experts.mixture(*given, *weights, None, triton_experts.usual_tiles(QWEN, 4096))
    few = [part[:64] for part in given]
    assert torch.equal(found[:64], triton_experts.mixture(*few, *weights, None, triton_experts.usual_tiles(QWEN, 64)))


def test_what_torch_compile_traces():
    from ascend_quant.kernels import cuda

    experts, width, hidden, top = TINY
    given, weights = routed(5, experts, top, hidden), stacks(experts, width, hidden)
    compiled = torch.compile(lambda *parts: cuda.experts(*parts) + 1, fullgraph=True)
    assert torch.equal(compiled(*given, *weights), cuda.experts(*given, *weights) + 1)


@pytest.mark.parametrize("tokens", [1, 64, 256, 600])
def test_the_routers_product(tokens):
    from ascend_quant.kernels import cuda

    generator = torch.Generator(device="cuda").manual_seed(0)
    x = torch.randn(tokens, 2048, device="cuda", generator=generator).bfloat16()
    weight = torch.randn(128, 2048, device="cuda", generator=generator).bfloat16()
    torch.testing.assert_close(
        cuda.router_product(x, weight).float(), x.float() @ weight.float().t(), rtol=2**-7, atol=0.1
    )
