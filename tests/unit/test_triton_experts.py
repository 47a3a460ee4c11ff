"""The mixture of int8 experts in Triton's interpreter, against the oracle's and against sorting by hand."""

from importlib import import_module

import numpy as np
import pytest
import torch
from kernel_modules import interpreter

from ascend_quant import oracle

pytest.importorskip("triton")

BFLOAT16_STEP = 2.0**-6  # both parts and sum are cut off by the interpreter, where a GPU rounds them


@pytest.fixture(scope="module")
def kernels():
    with interpreter(), np.errstate(all="ignore"):
        module = import_module("ascend_quant.kernels.cuda.serve.triton_experts")
        module.triton_routing.LONGEST_SEGMENT = module.triton_routing.SHORTEST_SEGMENT = 32  # several for few pairs
        yield module


def small_tiles(kernels, **changed):
    tiles = kernels.usual_tiles((4, 64, 128, 2), 5)
    return tiles._replace(up_n=32, up_k=32, down_n=32, down_k=32, **changed)


def weights(experts: int, hidden: int, width: int):
    generator = torch.Generator().manual_seed(hidden)
    w13 = torch.randn(experts, 2 * width, hidden, generator=generator)
    w2 = torch.randn(experts, hidden, width, generator=generator)
    return *oracle.quantize_weight(w13), *oracle.quantize_weight(w2)


def check(kernels, x, weight, expert, stacks, local=None, **changed):
    """The output is the oracle's, but for what is rounded to x's dtype: each part, and their sum."""
    here = expert if local is None else local[expert.long()]
    found = kernels.mixture(x, weight, expert, *stacks, local, small_tiles(kernels, **changed))
    assert found.dtype == x.dtype and found.shape == x.shape
    expected, parts = oracle.experts(x, weight, here, *stacks), torch.zeros(x.shape)
    for slot in range(expert.shape[1]):
        parts += oracle.experts(x, weight[:, slot : slot + 1], here[:, slot : slot + 1], *stacks).abs()
    step = {torch.bfloat16: BFLOAT16_STEP, torch.float16: 2.0**-10, torch.float32: 2.0**-22}[x.dtype]
    assert ((found.float() - expected).abs() <= step * parts).all()
    return found


def routed(tokens: int, experts: int, top: int):
    generator = torch.Generator().manual_seed(tokens)
    expert = torch.stack([torch.randperm(experts, generator=generator)[:top] for _ in range(tokens)])
    return torch.rand(tokens, top, generator=generator), expert.int()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.parametrize(("tokens", "hidden", "width", "top"), [(1, 64, 32, 1), (9, 96, 48, 2), (40, 40, 24, 3)])
def test_experts(kernels, dtype, swap, tokens, hidden, width, top):
    x = torch.randn(tokens, hidden, generator=torch.Generator().manual_seed(3)).to(dtype)
    check(kernels, x, *routed(tokens, 5, top), weights(5, hidden, width), up_swap=swap, down_swap=swap)


def test_all_tokens_for_one_expert(kernels):
    x, weight = torch.randn(37, 64), torch.rand(37, 1)
    expert = torch.full((37, 1), 2)
    check(kernels, x, weight, expert, weights(4, 64, 32), up_group=2, down_group=4)


def test_experts_of_other_ranks_and_of_nobody(kernels):
    local = torch.tensor([-1, 2, 0, -1, 1, -1], dtype=torch.int32)
    x = torch.randn(20, 64)
    weight, expert = routed(20, 6, 2)
    expert[4] = torch.tensor([0, 5])
    found = check(kernels, x, weight, expert, weights(3, 64, 32), local)
    assert not found[4].any()
    expert[2, 1], expert[3, 0] = -1, 7
    beyond = torch.where((expert >= 0) & (expert < 6), expert, 0)  # expert 0 is nobody's here
    again = kernels.mixture(x, weight, expert, *weights(3, 64, 32), local, small_tiles(kernels))
    assert torch.equal(again, kernels.mixture(x, weight, beyond, *weights(3, 64, 32), local, small_tiles(kernels)))


def test_what_is_not_finite_stays_in_its_token(kernels):
    x = torch.randn(6, 64)
    weight, expert = routed(6, 4, 2)
    before = kernels.mixture(x, weight, expert, *weights(4, 64, 32), None, small_tiles(kernels))
    x[2, 5] = float("nan")
    found = kernels.mixture(x, weight, expert, *weights(4, 64, 32), None, small_tiles(kernels))
    assert found[2].isnan().all()
    rest = torch.arange(6) != 2
    assert torch.equal(found[rest], before[rest])


def test_no_tokens_and_tokens_that_are_not_contiguous(kernels):
    stacks = weights(4, 64, 32)
    nothing = kernels.experts(torch.empty(0, 64), torch.empty(0, 2), torch.empty(0, 2, dtype=torch.int32), *stacks)
    assert nothing.shape == (0, 64)
    wide, (weight, expert) = torch.randn(5, 96), routed(5, 4, 2)
    found = kernels.experts(wide[:, :64], weight, expert, *stacks)
    assert torch.equal(found, kernels.experts(wide[:, :64].contiguous(), weight, expert.long(), *stacks))


@pytest.mark.parametrize(("tokens", "experts", "top"), [(1, 4, 1), (50, 3, 2), (7, 20, 3), (64, 2, 1)])
def test_pairs_are_sorted_into_blocks_of_one_expert(kernels, tokens, experts, top):
    x = torch.randn(tokens, 32).bfloat16()
    _, expert = routed(tokens, experts + 1, top)  # the last is nobody's
    (codes, scale), places = kernels.sorted_codes(x, expert, None, experts, small_tiles(kernels))
    pair_at, expert_of = places
    expected = oracle.quantize_rows(x)
    assert torch.equal(codes, expected[0]) and torch.equal(scale, expected[1])
    expert_of, filled, pairs = expert_of[:-1], int(expert_of[-1]), tokens * top
    assert (expert_of[:filled] >= 0).all() and (expert_of[filled:] == -1).all()
    by_expert = [(expert.flatten() == number).nonzero().flatten().tolist() for number in range(experts)]
    assert filled == sum(-(-len(mine) // 16) for mine in by_expert)
    for number, mine in enumerate(by_expert):
        places = pair_at[expert_of == number].flatten().tolist()
        assert places == mine + [pairs] * (len(places) - len(mine))


def test_blocks_are_never_too_few(kernels):
    most_blocks = kernels.triton_routing.most_blocks
    for pairs, experts, block in ((1, 8, 16), (8, 8, 16), (100, 3, 16), (17, 1, 16), (33, 2, 16)):
        spread = min(pairs, experts)
        counts = [pairs - spread + 1] + [1] * (spread - 1)  # one expert with all that the others leave
        assert sum(-(-count // block) for count in counts) <= most_blocks(pairs, experts, block)
    assert most_blocks(512, 128, 16) == 152


@pytest.mark.parametrize("width", [48, 300, 1100])
def test_codes_of_h_are_the_oracles(kernels, width):
    h = torch.randn(9, width) * torch.tensor([1e-3, 1, 50] * 3)[:, None]
    h[1] = 0
    h[2, :40] = torch.arange(40) + 0.5  # ties
    h[2, 40:] = 127
    h[3, :40] = (torch.arange(40) + 0.5) * 1.000001  # near them
    h[3, 40:] = 127
    codes, scale = kernels.quantized(h, small_tiles(kernels))
    expected = oracle.quantize_rows(h)
    assert torch.equal(codes, expected[0]) and torch.equal(scale, expected[1])
