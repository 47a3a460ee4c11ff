"""Bounds on weights and factors, against every number that there is: all BF16 numbers of a range are tried."""

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ascend_quant.profile.arithmetic import (
    quotients,
    requantize,
    rounded_magnitudes,
    smoothed,
)
from ascend_quant.profile.evidence import Evidence
from ascend_quant.profile.rules import ARITHMETICS, Rule


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
