"""Our W8A8 experts on npu:0: codes bit-equal to what the documentation says, outputs close to the oracle's.

The codes that an operator made are looked at between the operators (`Results`).
"""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from ascend_quant import oracle
from ascend_quant.kernels import cpu, npu
from ascend_quant.kernels.npu import ops as npu_ops
from npu_host.serving_cases import BF16, F16, F32, FORMS, I32, ROUNDING, SWIGLU_QUANT, Case, Results, generator

pytestmark = pytest.mark.each_version


@st.composite
def routings(draw) -> tuple[torch.Tensor, int, torch.Tensor | None]:
    """Experts of tokens, experts of this rank, and where the model's experts are: empty ones, and all tokens to one."""
    m, e = draw(st.integers(1, 6)), draw(st.integers(1, 5))
    local_G = None
    if draw(st.booleans()):
        places = draw(st.permutations([*range(e), *[-1] * draw(st.integers(0, 4))]))
        local_G = torch.tensor(places, dtype=I32)
    everywhere = e if local_G is None else len(local_G)
    t = draw(st.integers(1, everywhere))
    rows = [draw(st.permutations(range(everywhere)))[:t] for _ in range(1 if draw(st.booleans()) else m)]
    return torch.tensor((rows * m)[:m]), e, local_G


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    st.integers(0, 2**20), routings(), st.integers(1, 40), st.sampled_from(sorted(FORMS)), st.sampled_from([BF16, F16])
)
def test_experts_follow_the_documentation(seed, routing, k, form, dtype):
    expert_MT, e, local_G = routing
    case = Case(seed, expert_MT, e, k, 64, dtype, local_G)
    with Results() as results:
        found = case.run(form)
    rows = len(case.slots())
    codes_RH, scale_R = (part[:rows] for part in results.hidden)
    wanted = case.hidden()
    assert torch.equal(scale_R, wanted[1]) and torch.equal(codes_RH, wanted[0])
    expected, size = case.mixed(codes_RH, scale_R)
    assert found.dtype == dtype and found.isfinite().all()
    least = torch.finfo(dtype).smallest_normal  # below it steps are as wide as at it
    error, size = (found - expected).abs(), expected.abs().clamp(min=least) + 2**-10 * size
    assert (error <= 1.01 * ROUNDING[dtype] * size).all()


@pytest.mark.parametrize("dtype", [BF16, F16])
@pytest.mark.parametrize(("form", "nz"), [("apart", False), ("apart", True), ("fused", True)])
@pytest.mark.parametrize("seed", range(3))
def test_experts_are_close_to_the_oracles(seed, form, nz, dtype):
    expert_MT = torch.stack([torch.randperm(5, generator=generator(seed + i))[:3] for i in range(4)])
    case = Case(seed, expert_MT, 5, 32, 64, dtype, nz=nz)
    with Results() as results:
        found = case.run(form)
    expected = oracle.experts(case.x_MK, case.weight_MT, case.expert_MT, *case.w13, *case.w2)
    _, size = case.mixed(*results.hidden)
    # each expert's output is rounded, and the sum; half a step each
    assert ((found - expected).abs() <= 1.01 * ROUNDING[dtype] * (size + expected.abs())).all()


@pytest.mark.parametrize("form", FORMS)
def test_a_rank_without_tokens_gives_zeros(form):
    """The rows behind an operator's last group are NaN here; none of them may come through."""
    elsewhere = torch.tensor([-1, 0, 1, -1], dtype=I32)
    case = Case(0, torch.tensor([[0, 3], [3, 0]]), 2, 16, 64, local_G=elsewhere)
    assert torch.equal(case.run(form), torch.zeros(2, 16, dtype=BF16))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("h", [64, 128])
def test_ids_of_int64_and_more_than_one_block(form, h):
    case = Case(1, torch.tensor([[1, 0], [2, 1], [2, 0]]), 3, 70, h)
    narrow = case.run(form)
    case.expert_MT = case.expert_MT.long()
    assert torch.equal(case.run(form), narrow)


@pytest.mark.parametrize(("form", "h"), [("apart", 10496), ("fused", 5120)])
def test_experts_at_the_documented_widths(form, h):
    case = Case(0, torch.tensor([[0]]), 1, 1, h)
    with Results() as results:
        case.run(form)
    assert all(torch.equal(*pair) for pair in zip(results.hidden, case.hidden(), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_as_many_experts_as_are_documented(form):
    case = Case(0, torch.tensor([[1023, 0, 511]]), 1024, 1, 64)
    with Results() as results:
        case.run(form)
    assert torch.equal(results.hidden[0][:3], case.hidden()[0])


@pytest.mark.parametrize("dtype", [BF16, F16, F32])
@pytest.mark.parametrize("local_G", [None, torch.tensor([2, -1, 0, 1], dtype=I32)])
def test_plain_experts(dtype, local_G):
    torch.manual_seed(0)
    x_MK, weight_MT = torch.randn(5, 24).to(dtype), torch.rand(5, 2).to(BF16).float()
    expert_MT = torch.stack([torch.randperm(3 if local_G is None else 4)[:2] for _ in range(5)])
    w13, w2 = (torch.randn(3, *shape).to(dtype) for shape in ((32, 24), (24, 16)))
    arguments = x_MK, weight_MT, expert_MT, w13, w2, local_G
    expected = cpu.plain_experts(*arguments).float()
    found = npu.plain_experts(*[None if value is None else value.npu() for value in arguments])
    assert found.dtype == dtype
    # the gates, their product and each expert's output are rounded
    slack = 8 * ROUNDING[dtype] * expected.abs().max()
    torch.testing.assert_close(found.cpu().float(), expected, rtol=0, atol=float(slack))


@pytest.mark.skipif(
    not npu_ops.second_swiglu_quant_traces(),
    reason=f"the Meta kernel in {npu_ops.installed()} refuses its own defaults",
)
def test_the_second_version_of_the_fused_operator_is_used_where_it_is_there(monkeypatch):
    case = Case(0, torch.tensor([[0, 1], [1, 0]]), 2, 16, 64)
    with Results() as with_second:
        found = case.run("fused")
    there = npu_ops.has_operator
    monkeypatch.setattr(npu_ops, "has_operator", lambda name: name != SWIGLU_QUANT[2] and there(name))
    with Results() as with_first:
        assert torch.equal(case.run("fused"), found)
    assert SWIGLU_QUANT[2] in with_second.of and SWIGLU_QUANT[1] not in with_second.of
    assert SWIGLU_QUANT[1] in with_first.of and SWIGLU_QUANT[2] not in with_first.of


def test_a_second_version_that_cannot_be_traced_is_not_used(monkeypatch, caplog):
    """As in torch_npu 2.10.0.post4, whose Meta kernel refuses the default of dequant_dtype."""
    case = Case(0, torch.tensor([[0, 1], [1, 0]]), 2, 16, 64)
    found = case.run("fused")
    there = npu_ops.operator

    def refuses(name: str):
        def run(*arguments, dequant_dtype: int = 0):
            raise RuntimeError(f"dequant_dtype is {dequant_dtype}")

        return run if name == SWIGLU_QUANT[2] else there(name)

    monkeypatch.setattr(npu_ops, "operator", refuses)
    npu_ops._second_swiglu_quant_traces.cache_clear()
    try:
        with Results() as results:
            assert torch.equal(case.run("fused"), found) and torch.equal(case.run("fused"), found)
    finally:
        npu_ops._second_swiglu_quant_traces.cache_clear()
    assert SWIGLU_QUANT[1] in results.of and SWIGLU_QUANT[2] not in results.of
    [warning] = caplog.records  # once
    assert warning.args == (npu_ops.installed(), "dequant_dtype is 0")


def test_whether_the_second_version_can_be_traced_is_what_fake_tensors_find():
    function = getattr(torch.ops.npu, SWIGLU_QUANT[2])
    with FakeTensorMode():
        x_RK, w_EKN = (torch.empty(shape, dtype=torch.int8, device="npu") for shape in ((4, 16), (2, 16, 32)))
        scales = torch.empty(2, 32, device="npu"), torch.empty(4, device="npu")
        arguments = x_RK, [w_EKN], [scales[0]], scales[1], torch.empty(2, dtype=torch.int64, device="npu")
        with contextlib.nullcontext() if npu_ops.second_swiglu_quant_traces() else pytest.raises(RuntimeError):
            function(*arguments)
