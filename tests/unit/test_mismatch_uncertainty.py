"""Standard errors, how many more prompts, and the weights at another length: against drawn and exact policies."""

import math

import numpy as np
import pytest
import torch

from ascend_quant.estimators import mismatch, sequence_weights
from ascend_quant.importance import of_normal
from ascend_quant.mismatch.lengths import at_length
from ascend_quant.mismatch.uncertainty import QUANTILES, prompts_needed, standard_errors

THRESHOLD = 1.2


def drawn(sequences: int, seed: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Tokens' differences whose size differs from sequence to sequence: they are clustered."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(sequences, generator=generator).double() * 0.2 + 0.02
    lengths = torch.randint(8, 25, (sequences,), generator=generator).tolist()
    rollout = [-torch.rand(length, generator=generator).double() for length in lengths]
    noise = [torch.randn(length, generator=generator).double() for length in lengths]
    train = [a + s * n - s * s / 2 for a, s, n in zip(rollout, size, noise, strict=True)]
    return rollout, train


def figures(rollout: list[torch.Tensor], train: list[torch.Tensor]) -> dict[str, float]:
    found = vars(mismatch(torch.cat(rollout), torch.cat(train), THRESHOLD))
    of_sequences = vars(sequence_weights(rollout, train, THRESHOLD))
    return {**found, **{f"sequence {name}": value for name, value in of_sequences.items()}}


def errors(rollout: list[torch.Tensor], train: list[torch.Tensor]) -> dict[str, float]:
    found = standard_errors(rollout, train, THRESHOLD)
    of_sequences = found.pop("sequence_weights")
    return {**found, **{f"sequence {name}": value for name, value in of_sequences.items()}}


def test_standard_errors_are_the_spread_over_repeats_and_cover_the_truth():
    """Of each figure: 40 repeats of 64 sequences; the truth is 20,000 sequences'. Two errors cover 90 % of all."""
    truth, repeats = figures(*drawn(20_000, 999)), [drawn(64, seed) for seed in range(40)]
    found, told = [figures(*one) for one in repeats], [errors(*one) for one in repeats]
    assert set(told[0]) == set(truth) - {"max_abs", "weight_largest", "sequence largest"}
    covered = {}
    for name in told[0]:
        spread = np.std([one[name] for one in found], ddof=1)
        assert np.median([one[name] for one in told]) == pytest.approx(spread, rel=0.4), name
        covered[name] = np.mean([abs(a[name] - truth[name]) <= 2 * b[name] for a, b in zip(found, told, strict=True)])
    assert np.mean(list(covered.values())) >= 0.9 and min(covered.values()) >= 0.8  # of 40, 0.8 is 3 deviations off


def test_tokens_of_a_sequence_do_not_count_as_independent():
    """Each sequence has one difference, said by each of its tokens: many tokens do not make it surer."""
    values = torch.linspace(-0.1, 0.1, 40).double().tolist()
    for length in (1, 50):
        train = [torch.full((length,), value).double() for value in values]
        found = standard_errors([torch.zeros_like(one) for one in train], train, 2.0)
        assert found["k1_kl"] == pytest.approx(np.std(values, ddof=1) / 40**0.5, rel=0.1)


def test_one_sequence_has_no_standard_error():
    assert standard_errors([torch.zeros(9)], [torch.ones(9)], 2.0) is None
    assert prompts_needed(1, 0.5, None) is None and prompts_needed(8, 0.0, 0.0) is None


def test_as_many_prompts_as_are_said_give_a_tenth():
    found = mismatch(*map(torch.cat, drawn(40, 0))).k3_kl
    error = standard_errors(*drawn(40, 0), 2.0)["k3_kl"]
    assert error / found > 0.1
    more = prompts_needed(40, found, error)
    rollout, train = drawn(40 + more, 1)
    assert standard_errors(rollout, train, 2.0)["k3_kl"] / mismatch(*map(torch.cat, (rollout, train))).k3_kl < 0.13
    assert more < 400 and prompts_needed(4000, found, error / 10) == 0


def test_all_quantiles_have_an_error():
    assert {name for name in vars(mismatch(torch.zeros(1), torch.zeros(1))) if name.startswith("p")} == set(QUANTILES)


@pytest.mark.parametrize("threshold", [1.0, 2.0, 5.0])
@pytest.mark.parametrize(("mean", "variance"), [(-0.01, 0.02), (-1.0, 2.0), (-0.3, 2.5), (0.4, 0.3)])
def test_clipped_weights_are_those_of_the_integral(mean, variance, threshold):
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


def test_a_length_is_told_from_shorter_responses():
    """Measured at 20 tokens, compared with sequences of 400 from the same policies: skewed ratios whose mean is 1."""
    generator = torch.Generator().manual_seed(4)
    policy = torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64)
    other = torch.tensor([0.52, 0.3, 0.14, 0.04], dtype=torch.float64)

    def sequences(count: int, length: int) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        tokens = torch.multinomial(policy, count * length, True, generator=generator).view(count, length)
        return list(policy.log()[tokens]), list(other.log()[tokens])

    found = at_length(400, *sequences(500, 20), 2.0)
    wanted = sequence_weights(*sequences(4000, 400), 2.0)
    assert wanted.ess < 0.9
    assert found.sequence.ess == pytest.approx(wanted.ess, abs=0.04)
    assert found.sequence.clipped == pytest.approx(wanted.clipped, abs=0.03)
    assert found.sequence.mean == pytest.approx(wanted.mean, abs=0.04)
    assert found.token.ess == pytest.approx(1 / (other**2 / policy).sum().item(), abs=0.003)
    assert found.spread == pytest.approx(1, abs=0.2)


def test_a_sequence_that_lies_off_as_a_whole_shows_in_the_spread():
    """Tokens of variance 1, of which 0.1 is the sequence's own: sums of 20 vary 1 + 0.1 * 19 times as much."""
    generator = torch.Generator().manual_seed(4)
    own, noise = torch.randn(800, 1, generator=generator), torch.randn(800, 20, generator=generator)
    train = list(0.9**0.5 * noise + 0.1**0.5 * own)
    assert at_length(400, [torch.zeros(20)] * 800, train, 2.0).spread == pytest.approx(2.9, rel=0.12)
