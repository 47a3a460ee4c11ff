"""Clipped importance weights in closed form, against numerical integrals."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ascend_quant.importance import of_normal


@settings(max_examples=30, deadline=None)
@given(
    mean=st.floats(-1, 0.4),
    variance=st.floats(0.02, 2.5),
    threshold=st.floats(1.0, 5.0),
)
def test_clipped_weights_are_those_of_the_integral(mean: float, variance: float, threshold: float):
    at = np.linspace(-12, 12, 200_001)
    density = np.exp(-at * at / 2) / math.sqrt(2 * math.pi) * (at[1] - at[0])
    raw = np.exp(mean + math.sqrt(variance) * at)
    weight = np.minimum(raw, threshold)
    found = of_normal(mean, variance, threshold)
    assert found.mean == pytest.approx((weight * density).sum(), rel=1e-6)
    assert found.ess == pytest.approx((weight * density).sum() ** 2 / (weight**2 * density).sum(), rel=1e-6)
    assert found.clipped == pytest.approx(density[raw > threshold].sum(), abs=1e-4)


def test_clipped_weights_of_the_longest_answers_stay_finite():
    shares = [of_normal(-kl, 2 * kl, 2.0).ess for kl in (30, 400, 500, 5000, 1e5)]
    assert shares == sorted(shares, reverse=True) and 0 <= shares[-1] < shares[0] < 0.01
    assert vars(of_normal(0.0, 0.0, 2.0)) == {"mean": 1.0, "ess": 1.0, "clipped": 0.0}
    assert vars(of_normal(1.0, 0.0, 2.0)) == {"mean": 2.0, "ess": 1.0, "clipped": 1.0}
