"""Our serving functions on npu:0: bit-equal to what the operators' documentation says, and close to the oracle.

The expected values are computed here with integers and float32 tensors, row by row and expert by expert; the codes that
an operator made are looked at between the operators (`Results`).

Shape suffixes as in npu_experts.py.
"""

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ascend_quant import oracle
from ascend_quant.kernels import cpu, npu, npu_experts, npu_linear, npu_ops
from ascend_quant.kernels.npu_formats import new_codes
from npu_host import formats, older_version, recorder, rules

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
ROUNDING = {BF16: 2.0**-8, F16: 2.0**-11, F32: 2.0**-24}  # half a step, relative
FORMS = {"apart": npu_experts.experts, "fused": npu_experts.fused_experts}
SWIGLU_QUANT = ("npu_dequant_swiglu_quant", "npu_grouped_matmul_swiglu_quant", "npu_grouped_matmul_swiglu_quant_v2")
quick = settings(max_examples=25, deadline=None, derandomize=True)
seeds = st.integers(0, 2**20)
dtypes = st.sampled_from([BF16, F16])


class Results(TorchDispatchMode):
    """Keeps what NPU operators return, by their names."""

    def __init__(self):
        super().__init__()
        self.of: dict[str, tuple] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func.namespace == "npu":
            self.of[func.__name__.split(".")[0]] = result
        return result

    @property
    def hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Codes and scales between the experts' two products."""
        codes, scale = next(self.of[name] for name in SWIGLU_QUANT if name in self.of)[:2]
        return codes.cpu(), scale.cpu()


class NoWaiting(TorchDispatchMode):
    """Refuses what makes the host wait for the device."""

    WAITS = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "_unique2", "bincount")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name, kwargs = func.__name__.split(".")[0], kwargs or {}
        on_npu = any(isinstance(value, torch.Tensor) and value.device.type == "npu" for value in args)
        to_host = torch.device(kwargs.get("device") or "npu").type == "cpu" or (name == "copy_" and args[0].is_cpu)
        by_mask = name in ("index", "index_put", "index_put_") and any(
            getattr(index, "dtype", None) == torch.bool for index in args[1]
        )
        if on_npu and (name in self.WAITS or to_host or by_mask):
            raise AssertionError(f"{name} waits for the device")
        return func(*args, **kwargs)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def int8(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-127, 128, shape, dtype=I8, generator=generator(seed))


def activations(seed: int, m: int, k: int, dtype: torch.dtype) -> torch.Tensor:
    """One row is zero, another is large."""
    x_MK = torch.randn(m, k, generator=generator(seed))
    x_MK[0] *= 10
    x_MK[1:2] = 0
    return x_MK.to(dtype)


def scales(seed: int, *shape: int) -> torch.Tensor:
    return (torch.rand(shape, generator=generator(seed)) + 0.1) / 500


def resident(codes_NK: torch.Tensor, nz: bool) -> torch.Tensor:
    """Codes (.., N, K) where an engine keeps them: (.., K, N) on the NPU, written row by row."""
    *stack, n, k = codes_NK.shape
    with torch.device("npu"):
        place = new_codes((*stack, k, n), nz)
    place.write(0, codes_NK.reshape(-1, k).npu())
    assert formats.format_of(place.tensor) == (formats.NZ if nz else formats.ND)
    return place.tensor


def sums_of(x_codes_MK: torch.Tensor, codes_NK: torch.Tensor) -> torch.Tensor:
    return (x_codes_MK.long() @ codes_NK.long().T).float()


# ---- linear layers


@quick
@given(seeds, st.tuples(*[st.integers(1, 70)] * 3), dtypes, st.booleans(), st.sampled_from([None, "own", F32]))
def test_linear_rounds_once(seed, size, dtype, nz, bias):
    m, k, n = size
    x_MK, codes_NK, scale_N = activations(seed, m, k, dtype), int8(seed, n, k), scales(seed, n)
    if bias is not None:
        bias = torch.randn(n, generator=generator(seed)).to(dtype if bias == "own" else bias)
    on_npu = None if bias is None else bias.npu()
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, nz), scale_N.npu(), on_npu)
    x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(x_MK.npu()))
    expected = sums_of(x_codes_MK, codes_NK) * scale_N * x_scale_M.unsqueeze(1)
    expected = expected if bias is None else expected + bias.float()
    assert found.dtype == dtype and torch.equal(found.cpu(), expected.to(dtype))


@pytest.mark.parametrize("nz", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("m", [1, 5])
@pytest.mark.parametrize("dtype", [BF16, F16])
def test_linear_is_the_oracles_rounded(nz, biased, m, dtype):
    """With powers of two for scales, where the order of the products makes no difference."""
    x_MK, codes_NK = activations(m, m, 96, dtype), int8(m, 80, 96)
    scale_N = 2.0 ** -torch.randint(6, 12, (80,), generator=generator(m))
    bias_N = torch.randn(80).to(dtype) if biased else None
    arguments = x_MK, codes_NK, scale_N, bias_N
    expected = oracle.matmul(*arguments).to(dtype)
    on_npu = [None if value is None else value.npu() for value in arguments]
    on_npu[1] = resident(codes_NK, nz).t()
    assert torch.equal(npu.matmul(*on_npu).cpu(), expected)
    assert torch.equal(cpu.matmul(*arguments), expected)


def test_matmul_of_rows_as_they_are_and_of_more_dimensions():
    x, codes_NK, scale_N = activations(0, 6, 32, BF16), int8(0, 20, 32), scales(0, 20)
    flat = npu.matmul(x.npu(), resident(codes_NK, True).t(), scale_N.npu())
    assert torch.equal(npu.matmul(x.npu(), codes_NK.npu(), scale_N.npu()).cpu(), flat.cpu())
    for shape in ((2, 3, 32), (1, 2, 3, 32)):
        found = npu.matmul(x.view(shape).npu(), codes_NK.npu(), scale_N.npu())
        assert found.shape == (*shape[:-1], 20) and torch.equal(found.view(6, 20).cpu(), flat.cpu())


def test_linear_with_scales_in_bfloat16():
    x_MK, codes_NK, scale_N = activations(0, 4, 32, BF16), int8(0, 20, 32), scales(0, 20).to(BF16)
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, True), scale_N.npu())
    assert torch.equal(
        found.cpu(), npu_linear.linear(x_MK.npu(), resident(codes_NK, True), scale_N.float().npu()).cpu()
    )


@quick
@given(seeds, st.tuples(*[st.integers(1, 70)] * 3), dtypes, st.booleans(), st.booleans(), st.floats(0.01, 0.2))
def test_static_linear(seed, size, dtype, nz, biased, x_scale):
    m, k, n = size
    x_MK, codes_NK, scale_N = activations(seed, m, k, dtype), int8(seed, n, k), scales(seed, n)
    bias_N, x_scale = torch.randn(n, generator=generator(seed)).to(dtype), torch.tensor(x_scale)
    on_npu = x_MK.npu(), resident(codes_NK, nz), scale_N.npu(), x_scale.npu(), bias_N.npu() if biased else None
    found = npu_linear.static_linear(*on_npu)
    factor = (1 / x_scale).to(dtype).float()
    sums_MN = sums_of((x_MK.float() * factor).round().clamp(-128, 127), codes_NK)
    scale_N = scale_N / factor
    if dtype == BF16:
        expected = (sums_MN * scale_N + biased * bias_N.float()).to(dtype)
    else:
        kept_N = (scale_N.view(I32) & ~0x1FFF).view(F32)
        expected = (sums_MN * kept_N).to(dtype) + biased * bias_N
    assert found.dtype == dtype and torch.equal(found.cpu(), expected)


@pytest.mark.parametrize("dtype", [BF16, F16])
def test_static_scales_are_undone_exactly_where_nothing_is_clamped(dtype):
    """A code is off by at most half a step, whatever the factor was rounded to."""
    x_MK, codes_NK, scale_N = torch.randn(8, 64).to(dtype), int8(0, 16, 64), torch.full((16,), 2.0**-9)
    x_scale = x_MK.float().abs().max() / 120
    found = npu_linear.static_linear(x_MK.npu(), resident(codes_NK, True), scale_N.npu(), x_scale.npu()).cpu().float()
    exact = x_MK.float() @ codes_NK.float().T * scale_N
    step_N = 0.51 * x_scale * (codes_NK.float().abs().sum(1) * scale_N)  # the worst that codes can do
    assert ((found - exact).abs() <= step_N + 2 * 2.0**-8 * exact.abs()).all()
    assert (found - exact).abs().mean() < step_N.mean() / 5


@pytest.mark.parametrize("shape", [(65535, 1), (1, 65535)])
@pytest.mark.parametrize("nz", [False, True])
def test_linear_at_the_documented_limits(shape, nz):
    k, n = shape
    x_MK, codes_NK, scale_N = activations(0, 1, k, BF16), int8(0, n, k), scales(0, n)
    found = npu_linear.linear(x_MK.npu(), resident(codes_NK, nz), scale_N.npu())
    x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(x_MK.npu()))
    assert torch.equal(found.cpu(), (sums_of(x_codes_MK, codes_NK) * scale_N * x_scale_M.unsqueeze(1)).to(BF16))


@pytest.mark.parametrize("size", [65535, 65536])
@pytest.mark.parametrize("wide", [False, True])
def test_the_limits_of_a_product_are_the_rules(size, wide):
    codes_KN = torch.zeros(1, 1, dtype=I8).expand(*((1, size) if wide else (size, 1)))
    x1 = torch.zeros(1, 1, dtype=I8).expand(1, codes_KN.shape[0])
    rule = next(rule for rule in rules.RULES["npu::npu_quant_matmul"] if rule.id == "quant_matmul.last-dim")
    assert refuses(npu_linear._check_product, codes_KN, codes_KN.shape[0], None) == (
        rule.broken(SimpleNamespace(x1=x1, x2=codes_KN)) is not None
    )


def refuses(check, *arguments) -> bool:
    try:
        check(*arguments)
    except ValueError:
        return True
    return False


# ---- experts


class Case:
    """A layer of experts and some tokens; w2's scales and the routing weights are bfloat16's, the others float32's."""

    def __init__(self, seed: int, expert_MT: torch.Tensor, e: int, k: int, h: int, dtype=BF16, local_G=None, nz=True):
        m, t = expert_MT.shape
        self.x_MK, self.expert_MT, self.local_G = activations(seed, m, k, dtype), expert_MT.to(I32), local_G
        self.weight_MT = torch.rand(m, t, generator=generator(seed)).to(BF16).float()
        self.w13 = int8(seed, e, 2 * h, k), scales(seed, e, 2 * h) * (12 / k**0.5)
        self.w2 = int8(seed + 1, e, k, h), scales(seed + 1, e, k).to(BF16).float()
        self.residents = resident(self.w13[0], nz), resident(self.w2[0], nz)
        self.dtype = dtype

    def run(self, form: str) -> torch.Tensor:
        return FORMS[form](*self.arguments()).cpu()

    def arguments(self) -> tuple:
        w13, w2 = (part.transpose(1, 2) for part in self.residents)
        tensors = (self.x_MK, self.weight_MT, self.expert_MT, w13, self.w13[1], w2, self.w2[1], self.local_G)
        return tuple(None if value is None else value.npu() for value in tensors)

    @property
    def local_MT(self) -> torch.Tensor:
        return self.expert_MT if self.local_G is None else self.local_G[self.expert_MT.long()]

    def slots(self) -> list[tuple[int, int, int]]:
        """(expert, token, slot) of each row, in the order of the rows."""
        m, t = self.expert_MT.shape
        here = [(int(self.local_MT[i, j]), i, j) for i in range(m) for j in range(t) if self.local_MT[i, j] >= 0]
        return sorted(here, key=lambda entry: entry[0])

    def hidden(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The formula of the documentation in float32, expert by expert."""
        x_codes_MK, x_scale_M = (part.cpu() for part in npu_linear.quantize_rows(self.x_MK.npu()))
        values = [torch.empty(0, self.w13[0].shape[1])]
        for expert, token, _ in self.slots():
            sums_1N = sums_of(x_codes_MK[token : token + 1], self.w13[0][expert])
            values.append(sums_1N * self.w13[1][expert] * x_scale_M[token])
        gate, up = torch.cat(values).chunk(2, dim=-1)
        activated_RH = gate * torch.sigmoid(gate) * up
        scale_R = activated_RH.abs().amax(-1) / torch.tensor(127.0)
        ratio_RH = torch.where(scale_R.unsqueeze(1) > 0, activated_RH / scale_R.unsqueeze(1), 0.0)
        return ratio_RH.round().to(I8), scale_R

    def mixed(self, codes_RH: torch.Tensor, scale_R: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The sum over a token's experts in float64, from hidden codes, and the sum of magnitudes."""
        out_MK = torch.zeros(self.x_MK.shape, dtype=torch.float64)
        size_MK = torch.zeros_like(out_MK)
        for row, (expert, token, slot) in enumerate(self.slots()):
            down_1K = sums_of(codes_RH[row : row + 1], self.w2[0][expert]) * self.w2[1][expert] * scale_R[row]
            part_K = self.weight_MT[token, slot].double() * down_1K.to(self.dtype).double()[0]
            out_MK[token] += part_K
            size_MK[token] += part_K.abs()
        return out_MK, size_MK


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


@quick
@given(seeds, routings(), st.integers(1, 40), st.sampled_from(sorted(FORMS)), dtypes)
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


# ---- graphs


def static(x, codes_KN, scale_N):
    return npu_linear.static_linear(x, codes_KN, scale_N, scale_N[0] * 20)


def linear_call(function, dtype=BF16, bias=False):
    x_MK, scale_N = activations(0, 5, 48, dtype).npu(), scales(0, 32).npu()
    return function, (x_MK, resident(int8(0, 32, 48), True), scale_N, *([scale_N.to(dtype)] if bias else []))


def experts_call(form: str, dtype=BF16, map_of_experts=None):
    case = Case(0, torch.tensor([[0, 1], [2, 0], [2, 1]]), 3, 16, 64, dtype, map_of_experts)
    return FORMS[form], tuple(value for value in case.arguments() if value is not None)


def plain_call(dtype=BF16):
    w13, w2 = (torch.randn(3, *shape).to(dtype).npu() for shape in ((32, 24), (24, 16)))
    x_MK, ids = torch.randn(3, 24).to(dtype).npu(), torch.tensor([[0, 1], [2, 0], [2, 1]]).npu()
    return npu_experts.plain_experts, (x_MK, torch.rand(3, 2).npu(), ids, w13, w2)


CALLS = {
    "linear": lambda: linear_call(npu_linear.linear, bias=True),
    "linear to float16": lambda: linear_call(npu_linear.linear, F16, bias=True),
    "static": lambda: linear_call(static),
    "static to float16": lambda: linear_call(static, F16),
    "experts": lambda: experts_call("apart"),
    "experts of a rank": lambda: experts_call("apart", map_of_experts=torch.tensor([1, -1, 0], dtype=I32)),
    "fused experts": lambda: experts_call("fused"),
    "fused experts to float16": lambda: experts_call("fused", F16),
    "plain experts": plain_call,
}


@pytest.fixture
def fresh_dynamo():
    torch._dynamo.reset()


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_compiled_without_graph_breaks(name, dynamic, fresh_dynamo):
    function, arguments = CALLS[name]()
    compiled = torch.compile(function, fullgraph=True, backend="eager", dynamic=dynamic)
    assert torch.equal(compiled(*arguments).cpu(), function(*arguments).cpu())


class Layer(torch.nn.Module):
    """A serving function with its weights as buffers; the first `inputs` arguments are the call's."""

    def __init__(self, function, arguments, inputs: int):
        super().__init__()
        self.function, self.rest = function, len(arguments) - inputs
        for i, value in enumerate(arguments[inputs:]):
            self.register_buffer(f"weight_{i}", value)

    def forward(self, *inputs):
        return self.function(*inputs, *(getattr(self, f"weight_{i}") for i in range(self.rest)))


@pytest.mark.parametrize("name", CALLS)
def test_exported_with_any_number_of_tokens(name):
    function, arguments = CALLS[name]()
    inputs = 3 if "experts" in name else 1
    layer, rows = Layer(function, arguments, inputs), torch.export.Dim("rows", min=2, max=4096)
    program = torch.export.export(layer, arguments[:inputs], dynamic_shapes=(({0: rows},) * inputs,))
    targets = [str(node.target) for node in program.graph.nodes if node.op == "call_function"]
    assert any(target.startswith("npu.") for target in targets)
    more = [torch.cat([value, value, value[:1]]) for value in arguments[:inputs]]
    assert torch.equal(program.module()(*more).cpu(), layer(*more).cpu())


@pytest.mark.parametrize("name", CALLS)
def test_fake_tensors_on_the_npu(name):
    function, arguments = CALLS[name]()
    real = function(*arguments)
    with FakeTensorMode():
        fake = function(*(torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device="npu") for a in arguments))
    assert (fake.shape, fake.dtype, fake.device) == (real.shape, real.dtype, real.device)


@pytest.mark.parametrize("name", CALLS)
def test_nothing_waits_for_the_device(name):
    function, arguments = CALLS[name]()
    with NoWaiting():
        function(*arguments)


@pytest.mark.parametrize(
    "waiting",
    [
        lambda x: x.max().item(),
        lambda x: x.tolist(),
        lambda x: x.cpu(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.empty(3).copy_(x),
    ],
)
def test_waiting_would_be_seen(waiting):
    with NoWaiting(), pytest.raises(AssertionError, match="waits for the device"):
        waiting(torch.ones(3).npu())


@pytest.mark.skipif(not older_version.is_there(), reason=f"{older_version.VARIABLE} is not set")
def test_torch_npu_2_7_takes_all_these_calls(monkeypatch, tmp_path):
    there = npu_ops.has_operator
    monkeypatch.setattr(npu_ops, "has_operator", lambda name: name != SWIGLU_QUANT[2] and there(name))
    monkeypatch.setattr(recorder, "calls", {})
    with torch.inference_mode():
        for call in CALLS.values():
            function, arguments = call()
            function(*arguments)
    calls = [found for found in recorder.calls.values() if found.caller.startswith("ascend_quant.kernels.npu_")]
    recorder.write_calls(tmp_path / "calls.json")
    said = zip(recorder.calls.values(), older_version.verdicts(tmp_path / "calls.json"), strict=True)
    assert len(calls) > 10 and not [(call.operator, why) for call, why in said if why and call in calls]
