"""The oracle against the rule, computed independently with exact rationals and with numpy."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant import oracle

SPECIAL = [0.0, -0.0, 1.0, -1.0, 127.0, 63.5, 0.5, 1.5, 2.5, -2.5, 1e-38, -1e-40, 3.3e38, -3.3e38, 1e-45]


def exact_code(value: float, scale: float) -> int:
    """Round-half-even of the float32 quotient, with exact rationals."""
    if scale == 0:
        return 0
    quotient = Fraction(float(np.float32(value) / np.float32(scale)))
    return max(-127, min(127, round(quotient)))  # Fraction rounds half to even


@settings(deadline=None, max_examples=200)
@given(st.lists(st.sampled_from(SPECIAL) | st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40))
def test_quantize_rows_follows_the_rule(values):
    row = torch.tensor([values], dtype=torch.float32)
    codes, scale = oracle.quantize_rows(row)
    with np.errstate(all="ignore"):
        expected_scale = np.abs(row.numpy()).max() / np.float32(127)
        expected = [exact_code(v, expected_scale) for v in row[0].tolist()]
    assert scale.item() == expected_scale
    assert codes[0].tolist() == expected


def test_ties_round_to_even():
    codes, scale = oracle.quantize_rows(torch.tensor([[127.0, 0.5, 1.5, 2.5, 3.5, -0.5, -1.5, -2.5]]))
    assert scale.item() == 1.0
    assert codes[0].tolist() == [127, 0, 2, 2, 4, 0, -2, -2]


def test_zero_row_has_zero_scale_and_codes():
    codes, scale = oracle.quantize_rows(torch.zeros(2, 5))
    assert scale.tolist() == [0.0, 0.0]
    assert not codes.any()


def test_float32_weights_are_rounded_to_bf16_first():
    w_NK = torch.randn(8, 33)
    codes, scale = oracle.quantize_weight(w_NK)
    rounded_codes, rounded_scale = oracle.quantize_rows(w_NK.to(torch.bfloat16).float())
    assert torch.equal(codes, rounded_codes) and torch.equal(scale, rounded_scale)
    assert not torch.equal(scale, oracle.quantize_rows(w_NK)[1])


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_value_shows_in_the_scale(bad):
    row = torch.ones(1, 7)
    row[0, 3] = bad
    assert not torch.isfinite(oracle.quantize_rows(row)[1]).any()


def test_a_slice_with_the_whole_rows_absmax_is_a_slice_of_the_codes():
    w_NK = torch.randn(6, 20, dtype=torch.bfloat16)
    codes, scale = oracle.quantize_weight(w_NK)
    part, part_scale = oracle.quantize_weight(w_NK[:, 7:15], w_NK.float().abs().amax(-1))
    assert torch.equal(part, codes[:, 7:15]) and torch.equal(part_scale, scale)


def test_dequantize_is_within_half_a_step():
    w_NK = torch.randn(16, 64, dtype=torch.bfloat16).float()
    codes, scale = oracle.quantize_weight(w_NK)
    assert ((oracle.dequantize(codes, scale) - w_NK).abs() <= scale.unsqueeze(-1) * 0.5001).all()


def test_matmul_equals_the_product_of_the_dequantized_in_float64():
    x_MK, w_NK, bias_N = torch.randn(5, 40), torch.randn(7, 40), torch.randn(7)
    codes, scale = oracle.quantize_weight(w_NK)
    x_codes, x_scale = oracle.quantize_rows(x_MK)
    left = x_codes.numpy().astype(np.float64) * x_scale.numpy().astype(np.float64)[:, None]
    right = codes.numpy().astype(np.float64) * scale.numpy().astype(np.float64)[:, None]
    expected = left @ right.T + bias_N.numpy()
    np.testing.assert_allclose(oracle.matmul(x_MK, codes, scale, bias_N).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_digest_is_python_integer_arithmetic_and_sees_every_element():
    values = torch.randint(-128, 128, (37,), dtype=torch.int8)
    golden = 0x9E3779B97F4A7C15
    expected = sum(v * ((i * golden) % 2**64 | 1) for i, v in enumerate(values.tolist())) % 2**64
    assert oracle.digest(values) == expected
    for i in range(values.numel()):
        other = values.clone()
        other[i] ^= 1
        assert oracle.digest(other) != expected
