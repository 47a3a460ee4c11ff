"""The mixture of int8 experts on a GPU: the shape of Qwen3-30B-A3B and odd ones, each way to compute it, in graphs."""

import pytest
import torch

from ascend_quant import oracle

pytest.importorskip("triton")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")

ERROR = 0.006  # of the norm: parts and their sum are rounded to BF16
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
    """The usual tiles and both kinds of kernels, with and without an early start."""
    from ascend_quant.kernels import triton_experts
    from ascend_quant.kernels.tuned import HopperGroups

    usual = triton_experts.usual_tiles(shape, tokens)
    found = [usual]
    if torch.cuda.get_device_capability() >= HOPPER:
        found.append(usual._replace(pdl=True))
    if torch.cuda.get_device_capability() == HOPPER:
        found += [HopperGroups(16), HopperGroups(32), HopperGroups(128)]
    return found


@pytest.mark.parametrize("shape", [(128, 768, 2048, 8), (8, 160, 288, 2), (3, 64, 144, 3)], ids=str)
@pytest.mark.parametrize("tokens", [1, 64, 300])
def test_every_way_gives_the_same_bits_near_the_oracle(shape, tokens):
    from ascend_quant.kernels import triton_experts

    experts, width, hidden, top = shape
    given, weights = routed(tokens, experts, top, hidden), stacks(experts, width, hidden)
    right, first = expected(*given, *weights), None
    for tiles in ways(shape, tokens):
        found = triton_experts.mixture(*given, *weights, None, tiles)
        first = found if first is None else first
        assert torch.equal(found, first), tiles
    assert error_of(first, right) < ERROR


def test_a_captured_graph_serves_every_routing():
    from ascend_quant.kernels import triton_experts

    shape = experts, width, hidden, top = 16, 128, 256, 4
    weights = stacks(experts, width, hidden)
    for tiles in ways(shape, 33):
        x, weight, expert = (part.clone() for part in routed(33, experts, top, hidden))
        triton_experts.mixture(x, weight, expert, *weights, None, tiles)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(3):  # one behind the other, as layers are
                found = triton_experts.mixture(x, weight, expert, *weights, None, tiles)
        for seed in range(5):
            torch.manual_seed(seed)
            x.normal_()
            expert.copy_(torch.stack([torch.randperm(experts)[:top] for _ in range(33)]))
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
    x, weight, expert = routed(100, 32, 4, 256)
    weights = stacks(8, 128, 256)
    found = cuda.experts(x, weight, expert, *weights, local)
    assert error_of(found, expected(x, weight, local[expert.long()], *weights)) < ERROR
    nobody = (local[expert.long()] < 0).all(-1)
    assert not found[nobody].any()


def test_many_tokens_give_what_few_give():
    from ascend_quant.kernels import triton_experts

    shape = experts, width, hidden, top = 128, 768, 2048, 8
    given, weights = routed(4096, experts, top, hidden), stacks(experts, width, hidden)
    found = triton_experts.mixture(*given, *weights, None, triton_experts.usual_tiles(shape, 4096))
    few = [part[:64] for part in given]
    assert torch.equal(found[:64], triton_experts.mixture(*few, *weights, None, triton_experts.usual_tiles(shape, 64)))


def test_what_torch_compile_traces():
    from ascend_quant.kernels import cuda

    given, weights = routed(24, 8, 2, 256), stacks(8, 128, 256)
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
