"""Log-probabilities that differ are counted to the last bit, under the mask, and the first one is named."""

import math

import pytest
import torch

from ascend_quant.exact.counters import Compared, compare


def case():
    generator = torch.Generator().manual_seed(0)
    engine = -torch.rand(3, 5, generator=generator)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 0, 1, 1, 1], [0, 0, 0, 0, 0]])
    return engine, engine.clone(), mask


def test_equal_bits():
    assert compare(*case()) == Compared(7, 0, 0.0, 0.0, None)


def test_a_last_bit_is_counted_and_its_token_named():
    engine, trainer, mask = case()
    trainer[1, 2] = trainer[1, 2].nextafter(torch.tensor(0.0))
    trainer[1, 4] -= 0.25
    found = compare(engine, trainer, mask)
    assert (found.tokens, found.unequal, found.first) == (7, 2, (1, 2))
    assert found.max_diff == (engine[1, 4] - trainer[1, 4]).item()
    assert found.k3_kl == pytest.approx((math.exp(-0.25) - 1 + 0.25) / 7)  # of seven tokens one counts


@pytest.mark.parametrize("shift", [0.5, -0.5])
def test_k3_is_of_the_kl_from_engine_to_trainer(shift):
    engine, trainer, mask = case()
    assert compare(engine, trainer + shift, mask).k3_kl == pytest.approx(math.exp(shift) - 1 - shift)


def test_tokens_of_others_do_not_count():
    engine, trainer, mask = case()
    trainer[mask == 0] += 1
    assert compare(engine, trainer, mask).unequal == 0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_infinitely_far(value):
    engine, trainer, mask = case()
    trainer[0, 1] = value
    assert compare(engine, trainer, mask) == Compared(7, 1, math.inf, math.inf, (0, 1))


def test_zeros_of_two_signs_are_two_bit_patterns_and_no_difference():
    engine, trainer, mask = case()
    engine[0, 0], trainer[0, 0] = 0.0, -0.0
    assert compare(engine, trainer, mask) == Compared(7, 1, 0.0, 0.0, (0, 0))


def test_an_empty_mask():
    engine, trainer, mask = case()
    assert compare(engine, trainer + 1, mask * 0) == Compared(0, 0, 0.0, 0.0, None)


def test_metrics_have_their_names():
    named = {"exact/tokens": 8, "exact/unequal": 2, "exact/max_diff": 0.25, "exact/k3_kl": 0.125}
    assert Compared(8, 2, 0.25, 0.125, (1, 2)).as_metrics() == named


def test_other_dtypes_and_shapes_are_refused():
    engine, trainer, mask = case()
    with pytest.raises(TypeError, match="bfloat16"):
        compare(engine, trainer.bfloat16(), mask)
    with pytest.raises(ValueError, match=r"\(3, 4\)"):
        compare(engine, trainer, mask[:, :4])
