"""CPU kernels against the oracle, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_modules import Kernels
from write_cases import KINDS, Case, awkward_values, check

from ascend_quant import oracle
from ascend_quant.kernels import NoKernels, chunks, cpu, kernels_for
from ascend_quant.kernels.cpu import serve as cpu_serving

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 10 ** torch.randn(shape[0], 1, generator=generator)).to(dtype)


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_of_rows_add_up(monkeypatch, kind):
    monkeypatch.setattr(chunks, "ELEMENTS", 7)  # of copies; 256 rows of what is quantized
    values = awkward_values(600, 3, torch.bfloat16, 0)
    first_row = 128 if kind == "fp8_blocks" else 3
    case = Case(kind, values.clamp(-6e4, 6e4) if kind == "fp16" else values, first_row=first_row, weight=5)
    check(Kernels(cpu, torch.device("cpu")), [case])


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 9),
    st.integers(1, 40),
    st.integers(1, 70),
    st.sampled_from(DTYPES),
    st.booleans(),
    st.integers(0, 999),
)
def test_matmul_equals_the_oracle(tokens, rows, length, dtype, with_bias, seed):
    x = torch.randn(tokens, length, generator=torch.Generator().manual_seed(seed)).to(dtype)
    codes, scale = oracle.quantize_weight(random((rows, length), torch.bfloat16, seed))
    bias = torch.randn(rows).to(dtype) if with_bias else None
    assert torch.equal(cpu.matmul(x, codes, scale, bias), oracle.matmul(x, codes, scale, bias).to(dtype))


def test_matmul_keeps_leading_dimensions():
    codes, scale = oracle.quantize_weight(torch.randn(6, 8))
    assert cpu.matmul(torch.randn(2, 3, 8), codes, scale).shape == (2, 3, 6)


@pytest.mark.parametrize("dtype", DTYPES)
def test_experts_equal_the_oracle_and_skip_other_ranks(dtype):
    torch.manual_seed(0)
    x, weight = torch.randn(11, 24).to(dtype), torch.rand(11, 2)
    expert = torch.randint(-1, 5, (11, 2))
    w13 = oracle.quantize_weight(torch.randn(5, 2 * 10, 24))
    w2 = oracle.quantize_weight(torch.randn(5, 24, 10))
    expected = oracle.experts(x, weight, expert, *w13, *w2).to(dtype)
    assert torch.equal(cpu.experts(x, weight, expert, *w13, *w2), expected)
    token = int((expert[:, 0] >= 0).nonzero()[0])
    gate, up = oracle.matmul(x[token : token + 1], w13[0][expert[token, 0]], w13[1][expert[token, 0]]).chunk(2, -1)
    alone = oracle.matmul(torch.nn.functional.silu(gate) * up, w2[0][expert[token, 0]], w2[1][expert[token, 0]])
    one_hot = torch.zeros(11, 2)
    one_hot[token, 0] = 1
    torch.testing.assert_close(oracle.experts(x, one_hot, expert, *w13, *w2)[token], alone[0])


def test_experts_of_the_whole_model_are_looked_up():
    x, weight = torch.randn(6, 16), torch.rand(6, 2)
    expert = torch.tensor([[0, 1], [2, 3], [4, 5], [5, 0], [1, 4], [3, 2]])
    local = torch.tensor([-1, 2, 0, -1, 1, -1], dtype=torch.int32)  # three of six are here
    w13, w2 = torch.randn(3, 2 * 8, 16), torch.randn(3, 16, 8)
    quantized = (*oracle.quantize_weight(w13), *oracle.quantize_weight(w2))
    expected = oracle.experts(x, weight, local[expert], *quantized)
    assert torch.equal(cpu.experts(x, weight, expert, *quantized, local), expected)
    plain = cpu.plain_experts(x, weight, local[expert], w13, w2)
    assert torch.equal(cpu.plain_experts(x, weight, expert, w13, w2, local), plain)
    assert plain[2].abs().max() > 0 and not plain[3].any()  # token 3 goes to others


def test_digest_in_chunks_equals_the_oracle(monkeypatch):
    monkeypatch.setattr(chunks, "ELEMENTS", 7)
    for dtype in (torch.int8, *DTYPES):
        values = (torch.randn(5, 11) * 50).to(dtype)
        assert int(cpu.digests([values])) == oracle.digest(values)


def test_a_device_without_kernels_is_named():
    with pytest.raises(NoKernels, match=r"'meta'.*cpu"):
        kernels_for(torch.device("meta"))


def test_products_are_exact_where_int_mm_is_not_trusted(monkeypatch):
    monkeypatch.setattr(cpu_serving, "INT_MM_IS_EXACT", False)
    codes, scale = oracle.quantize_weight(torch.randn(9, 300))
    x = torch.randn(4, 300)
    assert torch.equal(cpu.matmul(x, codes, scale), oracle.matmul(x, codes, scale))
