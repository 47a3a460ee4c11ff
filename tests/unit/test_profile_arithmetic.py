"""Bounds on weights and factors, against every number that there is: all BF16 numbers of a range are tried."""

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascend_quant.profile.arithmetic import (
    magnitudes,
    quotients,
    requantize,
    rounded_magnitudes,
    smoothed,
)
from ascend_quant.profile.evidence import Evidence
from ascend_quant.profile.layers import Pair
from ascend_quant.profile.rules import ARITHMETICS, Rule


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_bounds_hold_what_becomes_the_code_and_nothing_else(arithmetic):
    """x from a fine grid: inside the bounds it becomes the code, outside it does not."""
    scale = torch.tensor([0.0131])  # no code + 0.5 times it is a BF16 number
    x = torch.linspace(0, 2, 400_001)
    rounded = x if arithmetic == "float32" else x.bfloat16().float()
    quotient = rounded / scale
    quotient = quotient.bfloat16().float() if arithmetic == "bfloat16_quotient" else quotient
    codes = quotient.round().clamp(-128, 127)
    for code in (0, 1, 2, 63, 64, 65, 100, 126, 127):
        least, largest = magnitudes(torch.tensor([code], dtype=torch.int8), scale, arithmetic)
        inside = (x >= least) & (x <= largest)
        sure = (x > least * (1 + 1e-5)) & (x < largest * (1 - 1e-5))
        assert (codes[sure] == code).all()
        assert inside[codes == code].all()
        assert int((codes == code).sum()) > 100


def test_clamped_codes_are_bounded_on_one_side():
    codes = torch.tensor([127, -127, -128], dtype=torch.int8)
    assert magnitudes(codes, torch.ones(3), "float32")[1].isinf().tolist() == [True, False, True]


def test_rows_without_a_scale_bound_nothing():
    least, largest = magnitudes(torch.zeros(1, dtype=torch.int8), torch.zeros(1), "float32")
    assert (least.item(), largest.item()) == (0.0, float("inf"))


@given(st.floats(2.0**-60, 2.0**60), st.integers(0, 2**31))
def test_rounded_values_have_the_bounds_of_bf16_rounding(size, seed):
    value = torch.tensor([size]).bfloat16()
    least, largest = rounded_magnitudes(value)
    between = least + (largest - least) * torch.rand(64, generator=torch.Generator().manual_seed(seed))
    inner = between.clamp(least * (1 + 1e-6), largest * (1 - 1e-6))
    assert (inner.bfloat16() == value).all()
    assert (largest * (1 + 1e-5)).bfloat16() > value
    assert (least * (1 - 1e-5)).bfloat16() < value


def matrix(rows: int, columns: int, seed: int) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)).bfloat16()


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 1000), st.sampled_from(ARITHMETICS), st.integers(1, 40))
@example(145, "bfloat16_quotient", 20)  # quotients that are ties, of products that are rounded the other way
@example(288, "bfloat16_quotient", 20)
def test_any_factor_between_the_bounds_gives_every_code(seed, arithmetic, rows):
    w_NK = matrix(rows, 8, seed)
    factor_K = torch.rand(8, generator=torch.Generator().manual_seed(seed)) * 3 + 0.1
    rule = Rule(True, factor_K)
    x_NK = smoothed(w_NK, rule, arithmetic)
    scale_N = x_NK.abs().amax(1) / 127
    codes_NK = requantize(x_NK, scale_N, arithmetic).to(torch.int8)
    evidence = Evidence(8)
    evidence.add_codes(w_NK, codes_NK, scale_N, arithmetic)
    assert evidence.explained.all()
    assert ((evidence.lower <= factor_K * (1 + 1e-6)) & (evidence.upper >= factor_K * (1 - 1e-6))).all()
    inner = evidence.lower + (evidence.upper.clamp(max=evidence.lower * 2 + 1) - evidence.lower) * 0.37
    x_NK = smoothed(w_NK, Rule(True, inner), arithmetic)
    again, quotient = (compute(x_NK, scale_N, arithmetic) for compute in (requantize, quotients))
    tie = (quotient.abs() % 1 - 0.5).abs() < 1e-4  # bounds hold both codes of a tie, which BF16 numbers often are
    wide = evidence.upper > evidence.lower * (1 + 1e-5)
    assert torch.where(tie | ~wide, 0, again - codes_NK).eq(0).all()


def test_a_row_factor_is_found_from_rows():
    w_NK, factor_N = matrix(6, 300, 3), torch.rand(6) + 0.5
    x_NK = w_NK.float() * factor_N.unsqueeze(1)
    scale_N = x_NK.abs().amax(1) / 127
    evidence = Evidence(6)
    evidence.add_row_codes(w_NK, requantize(x_NK, scale_N).to(torch.int8), scale_N, "float32")
    torch.testing.assert_close(evidence.factor(), factor_N, rtol=1e-3, atol=0)
    torch.testing.assert_close(evidence.inverse().factor(), 1 / factor_N, rtol=1e-3, atol=0)


def test_codes_of_another_sign_are_not_explained():
    w_NK = matrix(4, 5, 0)
    codes = requantize(w_NK.float(), torch.full((4,), 0.01)).to(torch.int8)
    codes[2, 3] *= -1
    evidence = Evidence(5)
    evidence.add_codes(w_NK, codes, torch.full((4,), 0.01), "float32")
    assert evidence.explained.tolist() == [True, True, True, False, True]


def test_heads_of_a_grouped_pair():
    """Two heads of v with three channels, each feeding two heads of o."""
    pair = Pair("v", "o", groups=2, head=3)
    spread = pair.spread(torch.arange(6))
    assert spread.tolist() == [0, 1, 2, 0, 1, 2, 3, 4, 5, 3, 4, 5]
    assert pair.gathered(spread).tolist() == [[row, row] for row in range(6)]
