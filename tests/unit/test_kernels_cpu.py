"""CPU kernels against the oracle, bit for bit."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle
from ascend_quant.kernels import NoKernels, cpu, kernels_for

DTYPES = [torch.bfloat16, torch.float16, torch.float32]


def random(shape, dtype, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(shape, generator=generator) * 10 ** torch.randn(shape[0], 1, generator=generator)).to(dtype)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 600), st.integers(1, 70), st.sampled_from(DTYPES), st.booleans(), st.integers(0, 2**31))
def test_quantize_into_equals_the_oracle(rows, length, dtype, transposed, seed):
    source = random((length, rows), dtype, seed).T if transposed else random((rows, length), dtype, seed)
    buffer = torch.full((rows + 4, length), 77, dtype=torch.int8)
    scales = torch.full((rows + 4,), -1.0)
    expected, expected_scale = oracle.quantize_weight(source)
    nonfinite, changed = cpu.quantize_into(source, buffer[2:-2], scales[2:-2])
    assert torch.equal(buffer[2:-2], expected) and torch.equal(scales[2:-2], expected_scale)
    assert nonfinite == 0 and changed == int((expected != 77).sum())
    assert (buffer[:2] == 77).all() and (buffer[-2:] == 77).all()
    assert cpu.quantize_into(source, buffer[2:-2], scales[2:-2]) == (0, 0)


def test_quantize_into_counts_what_is_not_finite():
    source = torch.randn(600, 9)
    source[3, 4], source[599, 0], source[599, 1] = float("nan"), float("inf"), -float("inf")
    assert cpu.quantize_into(source, torch.zeros(600, 9, dtype=torch.int8), torch.zeros(600))[0] == 3


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


def test_digest_in_chunks_equals_the_oracle(monkeypatch):
    monkeypatch.setattr(cpu, "ELEMENTS", 7)
    for dtype in (torch.int8, *DTYPES):
        values = (torch.randn(5, 11) * 50).to(dtype)
        assert cpu.digest(values) == oracle.digest(values)


def test_a_device_without_kernels_is_named():
    with pytest.raises(NoKernels, match=r"'meta'.*cpu"):
        kernels_for(torch.device("meta"))


def test_products_are_exact_where_int_mm_is_not_trusted(monkeypatch):
    monkeypatch.setattr(cpu, "INT_MM_IS_EXACT", False)
    codes, scale = oracle.quantize_weight(torch.randn(9, 300))
    x = torch.randn(4, 300)
    assert torch.equal(cpu.matmul(x, codes, scale), oracle.matmul(x, codes, scale))
