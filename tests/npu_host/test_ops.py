"""Each reference kernel against an independent computation, in int64 and float64, written with loops and numpy.

Shape suffixes: E experts, M rows, N output columns, K input columns.
"""

import numpy as np
import pytest
import torch
import torch_npu
from hypothesis import given, settings
from hypothesis import strategies as st

from npu_host import formats
from npu_host.serving_cases import SECOND_NEEDS

BF16, F16, F32, I8, I32 = torch.bfloat16, torch.float16, torch.float32, torch.int8, torch.int32
HALF_STEP = {BF16: 2.0**-8, F16: 2.0**-10, F32: 2.0**-22}  # relative, with room for float32's own roundings
quick = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 2**20)
sizes = st.tuples(st.integers(1, 12), st.integers(1, 70), st.integers(1, 50))  # M, K, N
# Rows of each expert: none at all, all to one expert and empty experts are among them.
groups = st.one_of(
    st.lists(st.integers(0, 9), min_size=2, max_size=6),
    st.integers(2, 5).flatmap(lambda n: st.integers(0, n - 1).map(lambda i: [7 * (j == i) for j in range(n)])),
)


def codes(seed: int, *shape: int) -> torch.Tensor:
    return torch.randint(-128, 128, shape, dtype=I8, generator=torch.Generator().manual_seed(seed))


def floats(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).abs() + 0.01


def exact(x: torch.Tensor, w: torch.Tensor) -> np.ndarray:
    return x.numpy().astype(np.int64) @ w.numpy().astype(np.int64)


def close(result: torch.Tensor, expected: np.ndarray, slack: float = 1.0) -> None:
    step = HALF_STEP[result.dtype] * slack
    values = result.cpu().double().numpy()
    np.testing.assert_allclose(values, expected, rtol=step, atol=step * abs(expected).max(initial=0))


def requantized(values: np.ndarray, result: torch.Tensor, scale: torch.Tensor) -> None:
    """Codes and scales of rows that the kernel computed in float32 and we in float64: a code may be one off."""
    absmax = abs(values).max(axis=-1)
    np.testing.assert_allclose(scale.cpu().numpy(), absmax / 127, rtol=1e-5, atol=1e-12)
    ideal = values / np.where(absmax > 0, absmax / 127, 1)[:, None]
    assert abs(result.cpu().numpy() - ideal).max(initial=0) <= 0.51


def silu_product(values: np.ndarray, gate_first: bool = True) -> np.ndarray:
    first, second = np.split(values, 2, axis=-1)
    gate, up = (first, second) if gate_first else (second, first)
    return gate / (1 + np.exp(-gate)) * up


@quick
@given(seeds, sizes, st.sampled_from([BF16, F16]), st.booleans())
def test_dynamic_quant(seed, size, dtype, smoothed):
    m, k, _ = size
    x = (torch.randn(2, m, k, generator=torch.Generator().manual_seed(seed)) * 3).to(dtype)
    x[0, 0] = 0
    smooth = floats(seed, k).to(dtype) if smoothed else None
    code, scale = torch_npu.npu_dynamic_quant(x.npu(), smooth_scales=smooth.npu() if smoothed else None)
    values = x.float().numpy() * (smooth.float().numpy() if smoothed else np.float32(1))
    expected = abs(values).max(axis=-1) / np.float32(127)
    ratio = np.divide(values, expected[..., None], out=np.zeros_like(values), where=expected[..., None] > 0)
    assert scale.dtype == F32 and np.array_equal(scale.cpu().numpy(), expected)
    assert code.dtype == I8 and np.array_equal(code.cpu().numpy(), np.rint(ratio))


@quick
@given(seeds, sizes, st.booleans(), st.sampled_from([-1, -2]), st.booleans())
def test_quantize(seed, size, divide, axis, shifted):
    m, k, _ = size
    x = torch.randn(m, k, generator=torch.Generator().manual_seed(seed)) * 40
    scales = floats(seed, x.shape[axis])
    zero = torch.full((x.shape[axis],), 3, dtype=I32 if divide else F32) if shifted else None
    arguments = scales.npu(), zero.npu() if shifted else None
    code = torch_npu.npu_quantize(x.npu(), *arguments, torch.qint8, axis, divide)
    along = scales.numpy()[:, None] if axis == -2 else scales.numpy()
    scaled = x.numpy() / along if divide else x.numpy() * along
    assert np.array_equal(code.cpu().numpy(), np.clip(np.rint(scaled + 3 * shifted), -128, 127))


def test_quantize_to_int32_keeps_the_largest_integers():
    code = torch_npu.npu_quantize(torch.tensor([[1e12, -1e12]]).npu(), torch.ones(2).npu(), None, torch.qint32, -1)
    assert code.dtype == I32 and code.cpu().tolist() == [[2**31 - 1, -(2**31)]]


@quick
@given(seeds, sizes, st.sampled_from([BF16, F16]), st.booleans(), st.booleans(), st.booleans())
def test_quant_matmul_per_token(seed, size, dtype, blocks, biased, one_scale):
    m, k, n = size
    x, w = codes(seed, m, k), codes(seed + 1, k, n)
    scale, per_token = floats(seed, 1 if one_scale else n) / 500, floats(seed + 1, m) / 500
    bias = torch.randn(n, generator=torch.Generator().manual_seed(seed)) if biased else None
    weight = torch_npu.npu_format_cast(w.npu(), formats.NZ) if blocks else w.npu()
    result = torch_npu.npu_quant_matmul(
        x.npu(),
        weight,
        scale.npu(),
        pertoken_scale=per_token.npu(),
        bias=bias.npu() if biased else None,
        output_dtype=dtype,
    )
    expected = exact(x, w) * scale.double().numpy() * per_token.double().numpy()[:, None]
    assert result.dtype == dtype
    close(result, expected + (bias.double().numpy() if biased else 0))


def test_quant_matmul_sums_are_exact_where_float32_is_not():
    """127 * 127 * 2000 + 1 needs 25 bits: float32 accumulation would lose the one."""
    x, w = torch.full((1, 2001), 127, dtype=I8), torch.full((2001, 1), 127, dtype=I8)
    x[0, -1] = w[-1, 0] = 1
    one = torch.ones(1).npu()
    assert torch_npu.npu_quant_matmul(x.npu(), w.npu(), one, output_dtype=I32).item() == 127 * 127 * 2000 + 1


@quick
@given(seeds, sizes, st.sampled_from([I8, F16, BF16, I32]), st.booleans())
def test_quant_matmul_per_channel(seed, size, dtype, packed):
    m, k, n = size
    x, w, scale = codes(seed, m, k), codes(seed + 1, k, n), floats(seed, n) / 2000
    bias = torch.arange(n, dtype=I32)
    packed = packed and dtype in (I8, F16)
    if packed:
        scale = (scale.view(I32) & ~0x1FFF).view(F32)  # what the packed format keeps
    given_scale = torch_npu.npu_trans_quant_param(scale.npu()) if packed else scale.npu()
    assert given_scale.dtype == (torch.int64 if packed else F32)
    result = torch_npu.npu_quant_matmul(x.npu(), w.npu(), given_scale, bias=bias.npu(), output_dtype=dtype)
    sums = exact(x, w) + bias.numpy()
    if dtype == I32:
        assert np.array_equal(result.cpu().numpy(), sums)
    elif dtype == I8:
        assert abs(result.cpu().numpy() - np.clip(sums * scale.double().numpy(), -128, 127)).max() <= 0.5001
    else:
        close(result, sums * scale.double().numpy())


def test_trans_quant_param_keeps_19_bits_of_the_float():
    packed = torch_npu.npu_trans_quant_param(torch.tensor([1.0, 1.0 + 2**-23, -1.5]).npu()).cpu()
    assert [hex(value) for value in packed.tolist()] == ["0x40003f800000", "0x40003f800000", "0x4000bfc00000"]


def grouped_expected(x, weights, counts, transform):
    start, parts = 0, []
    for expert, count in enumerate(counts):
        parts.append(transform(exact(x[start : start + count], weights[expert]), expert, slice(start, start + count)))
        start += count
    return np.concatenate(parts)


@quick
@given(seeds, groups, sizes, st.booleans(), st.sampled_from([BF16, F16]))
def test_grouped_matmul(seed, counts, size, cumulative, dtype):
    spare, k, n = size
    rows, experts = sum(counts) + spare, len(counts)
    x, w = codes(seed, rows, k), codes(seed + 1, experts, k, n)
    scale = (floats(seed, experts, n) / 500).to(BF16 if dtype == BF16 else F32)
    per_token = floats(seed + 1, rows) / 500
    group_list = torch.tensor(counts).cumsum(0) if cumulative else torch.tensor(counts)
    [result] = torch_npu.npu_grouped_matmul(
        [x.npu()],
        [w.npu()],
        scale=[scale.npu()],
        per_token_scale=[per_token.npu()],
        split_item=2,
        group_type=0,
        group_list=group_list.npu(),
        group_list_type=int(not cumulative),
        output_dtype=dtype,
    )
    expected = grouped_expected(
        x, w, counts, lambda sums, e, r: sums * scale[e].double().numpy() * per_token[r].double().numpy()[:, None]
    )
    close(result[: sum(counts)], expected)
    assert result[sum(counts) :].isnan().all(), "rows past the groups are unspecified: they must not look valid"


@quick
@given(seeds, groups, st.booleans())
def test_grouped_matmul_to_int32_and_with_a_weight_for_each_expert(seed, counts, separate):
    rows, experts = sum(counts), len(counts)
    x, w = codes(seed, rows, 20), codes(seed + 1, experts, 20, 6)
    weights = [expert.npu() for expert in w] if separate else [torch_npu.npu_format_cast(w.npu(), formats.NZ)]
    [result] = torch_npu.npu_grouped_matmul(
        [x.npu()],
        weights,
        split_item=3,
        group_type=0,
        group_list=torch.tensor(counts).npu(),
        group_list_type=1,
        output_dtype=I32,
    )
    assert np.array_equal(result.cpu().numpy(), grouped_expected(x, w, counts, lambda sums, *_: sums))


def test_grouped_matmul_of_bfloat16():
    x, w = torch.randn(9, 16).to(BF16), torch.randn(3, 16, 8).to(BF16)
    counts = torch.tensor([4, 0, 5])
    [result] = torch_npu.npu_grouped_matmul(
        [x.npu()], [w.npu()], split_item=2, group_type=0, group_list=counts.npu(), group_list_type=1
    )
    wide = [x[:4].double() @ w[0].double(), x[4:].double() @ w[2].double()]
    close(result, torch.cat(wide).numpy())


@quick
@given(seeds, groups, st.integers(1, 40), st.integers(1, 20), st.integers(0, 3))
def test_grouped_matmul_swiglu_quant_and_its_second_version(seed, counts, k, half, spare):
    rows, experts = sum(counts) + spare, len(counts)
    x, w = codes(seed, rows, k), codes(seed + 1, experts, k, 2 * half)
    scale, x_scale = floats(seed, experts, 2 * half) / 500, floats(seed + 1, rows) / 500
    ends = torch.tensor(counts).cumsum(0)
    weight = torch_npu.npu_format_cast(w.npu(), formats.NZ)
    code, out_scale, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        x.npu(), weight, ends.npu(), scale.npu(), x_scale.npu()
    )
    values = grouped_expected(
        x,
        w,
        counts,
        lambda sums, e, r: silu_product(sums * scale[e].double().numpy() * x_scale[r].double().numpy()[:, None]),
    )
    used = sum(counts)
    requantized(values, code[:used], out_scale[:used])
    assert out_scale[used:].isnan().all() and (code[used:] == -128).all()
    for group_list, kind in ((ends, 0), (torch.tensor(counts), 1)):
        second = torch_npu.npu_grouped_matmul_swiglu_quant_v2(
            x.npu(), [weight], [scale.npu()], x_scale.npu(), group_list.npu(), group_list_type=kind, **SECOND_NEEDS
        )
        assert torch.equal(second[0].cpu(), code.cpu())
        assert torch.equal(second[1][:used].cpu(), out_scale[:used].cpu())


@quick
@given(seeds, groups, st.integers(0, 3), st.booleans())
def test_dequant_swiglu_quant(seed, counts, spare, gate_first):
    rows, half = sum(counts) + spare, 64
    x = torch.randint(-(10**6), 10**6, (rows, 2 * half), dtype=I32, generator=torch.Generator().manual_seed(seed))
    weight_scale, row_scale = floats(seed, len(counts), 2 * half) / 5000, floats(seed + 1, rows) / 500
    code, scale = torch_npu.npu_dequant_swiglu_quant(
        x.npu(),
        weight_scale=weight_scale.npu(),
        activation_scale=row_scale.npu(),
        group_index=torch.tensor(counts).npu(),
        activate_left=gate_first,
        quant_mode=1,
    )
    used = sum(counts)
    group = np.repeat(np.arange(len(counts)), counts)
    wide = x[:used].numpy() * weight_scale.double().numpy()[group] * row_scale[:used].double().numpy()[:, None]
    requantized(silu_product(wide, gate_first), code[:used], scale[:used])
    assert scale[used:].isnan().all()


def test_dequant_swiglu_quant_of_bfloat16_without_groups():
    x = torch.randn(5, 12).to(BF16)
    code, scale = torch_npu.npu_dequant_swiglu_quant(x.npu(), activate_left=True, quant_mode=1)
    requantized(silu_product(x.double().numpy()), code, scale)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_swiglu(dim):
    x = torch.randn(6, 4, 10)
    expected = np.moveaxis(silu_product(np.moveaxis(x.double().numpy(), dim, -1)), -1, dim)
    close(torch_npu.npu_swiglu(x.npu(), dim=dim), expected, slack=4)


@quick
@given(seeds, st.integers(1, 9), st.integers(2, 8), st.data())
def test_routing_to_experts_and_back(seed, tokens, experts, data):
    top = data.draw(st.integers(1, experts))
    first = data.draw(st.integers(0, experts - 1))
    last = data.draw(st.integers(first + 1, experts))
    dynamic = data.draw(st.booleans())
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(tokens, 6, generator=generator).to(BF16)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:top] for _ in range(tokens)]).to(I32)
    rows, place, counts, scale = torch_npu.npu_moe_init_routing_v2(
        x.npu(),
        ids.npu(),
        active_num=tokens * top,
        expert_num=experts,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        active_expert_range=[first, last],
        quant_mode=1 if dynamic else -1,
    )
    wanted = [
        (expert, slot) for expert in range(first, last) for slot in range(tokens * top) if ids.view(-1)[slot] == expert
    ]
    assert counts.cpu().tolist() == [sum(expert == e for e, _ in wanted) for expert in range(first, last)]
    expected_place = [-1] * (tokens * top)
    for row, (_, slot) in enumerate(wanted):
        expected_place[slot] = row
    assert place.cpu().tolist() == expected_place
    source = x[[slot // top for _, slot in wanted]]
    if dynamic:
        requantized(source.double().numpy(), rows[: len(wanted)], scale[: len(wanted)])
    else:
        assert torch.equal(rows[: len(wanted)].cpu(), source)
    if not dynamic and (first, last) == (0, experts):
        weight = torch.rand(tokens, top, generator=generator).to(BF16)
        back = torch_npu.npu_moe_token_unpermute(rows, place, probs=weight.npu())
        close(back, x.double().numpy() * weight.double().sum(dim=1).numpy()[:, None], slack=2)


def test_permute_and_unpermute():
    tokens, ids = torch.randn(4, 3).to(BF16), torch.tensor([[0, 4], [4, 3], [4, 2], [1, 1]])
    rows, place = torch_npu.npu_moe_token_permute(tokens.npu(), ids.npu())
    assert place.cpu().tolist() == [0, 5, 6, 4, 7, 3, 1, 2]
    assert torch.equal(rows.cpu(), tokens[[0, 3, 3, 2, 1, 0, 1, 2]])
    assert torch.equal(torch_npu.npu_moe_token_unpermute(rows, place).cpu(), tokens.repeat_interleave(2, dim=0))


@pytest.mark.parametrize("renormalized", [False, True])
@pytest.mark.parametrize("sigmoid", [False, True])
def test_gating(sigmoid, renormalized):
    logits, bias = torch.randn(7, 12), torch.randn(12)
    scores = 1 / (1 + np.exp(-logits.double().numpy())) if sigmoid else torch.softmax(logits.double(), -1).numpy()
    chosen = np.argsort(-(scores + bias.double().numpy()), axis=-1)[:, :3]
    weight = np.take_along_axis(scores, chosen, axis=-1)
    if sigmoid or renormalized:
        weight = weight / weight.sum(axis=-1, keepdims=True)
    result = torch.ops._C_ascend.moe_gating_top_k(
        logits.npu(), 3, 1, 1, 1, int(renormalized), int(sigmoid), False, 2.5, 1e-20, bias.npu()
    )
    assert np.array_equal(result[1].cpu().numpy(), chosen)
    close(result[0], 2.5 * weight, slack=8)
    if not renormalized:
        same = torch_npu.npu_moe_gating_top_k(
            logits.npu(), 3, bias=bias.npu(), norm_type=int(sigmoid), routed_scaling_factor=2.5
        )
        assert torch.equal(same[0].cpu(), result[0].cpu()) and torch.equal(same[1].cpu(), result[1].cpu())


def test_vllm_ascends_own_operators_are_torch_npus():
    counts, x, w = torch.tensor([3, 0, 2]), codes(0, 5, 16), codes(1, 3, 16, 128)
    scale, x_scale = floats(0, 3, 128) / 500, floats(1, 5) / 500
    weight = torch_npu.npu_format_cast(w.npu(), formats.NZ)
    fused = torch.ops._C_ascend.grouped_matmul_swiglu_quant_weight_nz(
        x.npu(), weight, scale.npu(), x_scale.npu(), counts.cumsum(0).npu()
    )
    [sums] = torch_npu.npu_grouped_matmul(
        [x.npu()], [weight], split_item=3, group_type=0, group_list=counts.npu(), group_list_type=1, output_dtype=I32
    )
    apart = torch.ops._C_ascend.npu_dequant_swiglu_quant(
        sums, weight_scale=scale.npu(), activation_scale=x_scale.npu(), group_index=counts.npu(), quant_mode=1
    )
    assert torch.equal(fused[0].cpu(), apart[0].cpu()) and torch.equal(fused[1].cpu(), apart[1].cpu())
    ids = torch.tensor([[2, 0], [1, 2]], dtype=I32)
    modes = dict(expert_num=3, expert_tokens_num_type=1, expert_tokens_num_flag=True, quant_mode=1)
    routed = [
        operator(torch.ones(2, 4, dtype=BF16).npu(), ids.npu(), **modes)
        for operator in (torch.ops._C_ascend.npu_moe_init_routing_custom, torch_npu.npu_moe_init_routing_v2)
    ]
    assert all(torch.equal(one.cpu(), other.cpu()) for one, other in zip(*routed, strict=True))


@pytest.fixture
def process_of_an_engine():
    """vLLM's model loader sets both while it builds a model and runs what comes after loading."""
    torch.set_default_dtype(BF16)
    torch.set_default_device("npu")
    yield
    torch.set_default_dtype(F32)
    torch.set_default_device(None)


def test_the_process_defaults_do_not_matter(process_of_an_engine):
    counts, x, w = torch.tensor([3, 2]), torch.ones(5, 16, dtype=I8), torch.ones(2, 16, 8, dtype=I8)
    code, scale, _ = torch_npu.npu_grouped_matmul_swiglu_quant(
        x, torch_npu.npu_format_cast(w, formats.NZ), counts.cumsum(0), torch.ones(2, 8), torch.ones(5, dtype=F32)
    )
    assert code.tolist() == [[127] * 4] * 5 and scale.dtype == F32
    routed = torch_npu.npu_moe_init_routing_v2(
        torch.ones(2, 4),
        torch.tensor([[1, 0], [0, 1]], dtype=I32),
        expert_num=2,
        expert_tokens_num_type=1,
        expert_tokens_num_flag=True,
        quant_mode=1,
    )
    assert [result.dtype for result in routed] == [I8, I32, torch.int64, F32]
    assert torch_npu.npu_quantize(torch.ones(2, 4), torch.ones(4), None, torch.qint8, -1, False).sum() == 8
