"""The figures of a mismatch, against other formulas and against verl's own."""

import math

import pytest
import torch

from ascend_quant.integrations.verl.metrics.estimators import mismatch, sequence_weights


def exact_samples(counts: list[int], train: list[float]) -> tuple[torch.Tensor, torch.Tensor]:
    """Each token as often as the rollout policy (counts / total) samples it: means are expectations, without noise."""
    total = sum(counts)
    rollout = [math.log(count / total) for count in counts for _ in range(count)]
    scored = [math.log(p) for p, count in zip(train, counts, strict=True) for _ in range(count)]
    return torch.tensor(rollout, dtype=torch.float64), torch.tensor(scored, dtype=torch.float64)


def test_both_estimators_give_the_divergence_of_the_rollout_from_the_trained_policy():
    counts, train = [700, 200, 90, 10], [0.4, 0.3, 0.2, 0.1]
    rollout = [count / 1000 for count in counts]
    forward = sum(p * math.log(p / q) for p, q in zip(rollout, train, strict=True))
    backward = sum(q * math.log(q / p) for p, q in zip(rollout, train, strict=True))
    found = mismatch(*exact_samples(counts, train), threshold=1e9)
    assert abs(forward - backward) > 0.05
    assert found.k1_kl == pytest.approx(forward, rel=1e-9)
    assert found.k3_kl == pytest.approx(forward, rel=1e-9)
    assert found.weight_mean == pytest.approx(1, rel=1e-9)  # the expectation of train / rollout
    assert found.weight_largest == pytest.approx(0.1 / 0.01, rel=1e-9)
    second_moment = sum(q * q / p for p, q in zip(rollout, train, strict=True))
    assert found.ess == pytest.approx(1 / second_moment, rel=1e-9)


def test_clipping_and_quantiles():
    ratio = [0.5, 1.0, 1.5, 4.0]
    train = torch.tensor([-1.0] * 4).double() + torch.tensor(ratio).double().log()
    found = mismatch(torch.full((4,), -1.0), train, threshold=2.0)
    clipped = [0.5, 1.0, 1.5, 2.0]
    assert found.weight_mean == pytest.approx(sum(clipped) / 4)
    assert found.weight_largest == pytest.approx(4)
    assert found.clipped == 0.25
    assert found.ess == pytest.approx(sum(clipped) ** 2 / (4 * sum(w * w for w in clipped)))
    absolute = sorted(abs(math.log(r)) for r in ratio)
    assert found.p50_abs == pytest.approx((absolute[1] + absolute[2]) / 2)
    assert found.max_abs == pytest.approx(absolute[3])
    assert found.p90_abs == pytest.approx(absolute[2] + 0.7 * (absolute[3] - absolute[2]))  # at 0.9 * 3 = 2.7
    assert found.mean_abs == pytest.approx(sum(absolute) / 4)


def test_the_weight_of_a_sequence_is_the_product_of_its_tokens():
    ratios = [[2.0, 3.0], [0.5], [1.0, 1.0, 0.25]]
    rollout = [torch.zeros(len(one)) for one in ratios]
    train = [torch.tensor(one, dtype=torch.float64).log() for one in ratios]
    found = sequence_weights(rollout, train, threshold=2.0)
    assert found.largest == pytest.approx(6)
    assert found.mean == pytest.approx((2 + 0.5 + 0.25) / 3)
    assert found.clipped == pytest.approx(1 / 3)
    assert found.ess == pytest.approx((2.75 / 3) ** 2 / ((4 + 0.25 + 0.0625) / 3))


def test_equal_policies_have_no_mismatch():
    same = torch.linspace(-9, -0.1, 50)
    found = mismatch(same, same.clone())
    assert (found.k1_kl, found.k3_kl, found.max_abs, found.clipped) == (0, 0, 0, 0)
    assert (found.weight_mean, found.weight_largest, found.ess) == (1, 1, 1)


@pytest.mark.parametrize(
    ("rollout", "train", "threshold", "message"),
    [
        ([], [], 2.0, r"shapes \(0,\) and \(0,\)"),
        ([-1.0, -2.0], [-1.0], 2.0, r"shapes \(2,\) and \(1,\)"),
        ([-1.0, float("nan")], [-1.0, -1.0], 2.0, "1 of 2 log-probabilities are not finite"),
        ([-1.0], [-1.0], 0.0, "threshold 0.0"),
        ([-1.0], [-1.0], float("nan"), "threshold nan"),
    ],
)
def test_what_cannot_be_compared_is_refused(rollout, train, threshold, message):
    with pytest.raises(ValueError, match=message):
        mismatch(torch.tensor(rollout), torch.tensor(train), threshold)


def test_the_figures_are_those_of_verl():
    helper = pytest.importorskip("verl.trainer.ppo.rollout_corr_helper")
    generator = torch.Generator().manual_seed(3)
    lengths = [5, 17, 1, 30]
    mask = torch.tensor([[i < length for i in range(30)] for length in lengths])
    rollout = -torch.rand(4, 30, generator=generator).double() * 4
    train = rollout + 0.6 * torch.randn(4, 30, generator=generator).double()

    def theirs(level: str) -> dict[str, float]:
        given = {"old_log_prob": train, "rollout_log_prob": rollout, "response_mask": mask}
        _, _, metrics = helper.compute_rollout_correction_and_rejection_mask(
            **given, rollout_is=level, rollout_is_threshold=2.0
        )
        return {name.removeprefix("rollout_corr/"): value for name, value in metrics.items()}

    found, verl = mismatch(rollout[mask], train[mask], 2.0), theirs("token")
    assert found.clipped > 0
    close = {"rel": 1e-5}  # verl divides by sums + 1e-8
    assert found.k1_kl == pytest.approx(verl["kl"], **close)
    assert found.k3_kl == pytest.approx(verl["k3_kl"], **close)
    assert found.weight_mean == pytest.approx(verl["rollout_is_mean"], **close)
    assert min(found.weight_largest, 2.0) == pytest.approx(verl["rollout_is_max"], **close)  # verl's is clipped
    assert found.ess == pytest.approx(verl["rollout_is_eff_sample_size"], **close)
    assert found.clipped == pytest.approx(verl["rollout_is_ratio_fraction_high"], **close)
    rows = [(rollout[i, :length], train[i, :length]) for i, length in enumerate(lengths)]
    sequences, verl = sequence_weights(*zip(*rows, strict=True), 2.0), theirs("sequence")
    assert sequences.clipped == pytest.approx(verl["rollout_is_ratio_fraction_high"], **close)
    assert sequences.largest == pytest.approx(verl["rollout_is_max"], **close)


def test_a_large_batch_has_quantiles_too():
    """torch.quantile refuses more than 2**24 elements."""
    found = mismatch(torch.zeros(2**24 + 2), torch.linspace(0, 1, 2**24 + 2))
    assert [found.p50_abs, found.p90_abs, found.p99_abs] == pytest.approx([0.5, 0.9, 0.99], abs=1e-5)
