"""Standard errors and the KL by position: against repeated draws, and every token by hand."""

import math

import numpy as np
import pytest
import torch

from ascend_quant.mismatch.figures import by_position, standard_error


def drawn(sequences: int, seed: int) -> list[torch.Tensor]:
    """Tokens' differences whose size differs from sequence to sequence: they are clustered."""
    generator = torch.Generator().manual_seed(seed)
    size = torch.rand(sequences, generator=generator).double() * 0.2 + 0.02
    lengths = torch.randint(8, 25, (sequences,), generator=generator).tolist()
    noise = [torch.randn(length, generator=generator).double() for length in lengths]
    return [s * n + s * s / 2 for s, n in zip(size, noise, strict=True)]


def k3(difference: torch.Tensor) -> torch.Tensor:
    return (-difference).exp() - 1 + difference


@pytest.mark.parametrize("term", [k3, torch.abs], ids=["k3", "abs"])
def test_a_standard_error_is_the_spread_over_repeats_and_covers_the_truth(term):
    """80 repeats of 64 sequences; the truth is 20,000 sequences'. Two errors cover most of all repeats."""
    truth = torch.cat([term(one) for one in drawn(20_000, 999)]).mean()
    repeats = [[term(one) for one in drawn(64, seed)] for seed in range(80)]
    means, told = [torch.cat(one).mean() for one in repeats], [standard_error(one) for one in repeats]
    assert np.median(told) == pytest.approx(np.std(means, ddof=1), rel=0.25)
    assert np.mean([abs(m - truth) <= 2 * e for m, e in zip(means, told, strict=True)]) >= 0.88


def test_tokens_of_a_sequence_do_not_count_as_independent():
    """Each sequence has one difference, said by each of its tokens: many tokens do not make it surer."""
    values = torch.linspace(-0.1, 0.1, 40).double()
    for length in (1, 50):
        found = standard_error([value.expand(length) for value in values])
        assert found == pytest.approx(np.std(values.numpy(), ddof=1) / 40**0.5)
    assert standard_error([torch.zeros(9)]) is None


def test_positions_against_every_token_by_hand():
    generator = torch.Generator().manual_seed(2)
    prompts, lengths = [3, 10, 1], [20, 6, 2]
    differences = [0.1 * torch.randn(n, generator=generator).double() for n in lengths]
    found = by_position(prompts, differences, edges=(8, 16))
    assert [(one["first"], one["end"]) for one in found] == [(0, 8), (8, 16), (16, None)]
    for one in found:
        held = {
            (number, place): difference[place].item()
            for number, (prompt, difference) in enumerate(zip(prompts, differences, strict=True))
            for place in range(len(difference))
            if one["first"] <= prompt + place < (one["end"] or math.inf)
        }
        assert (one["tokens"], one["sequences"]) == (len(held), len({number for number, _ in held}))
        assert one["k1_kl"] == pytest.approx(sum(held.values()) / len(held))
        assert one["k3_kl"] == pytest.approx(sum(math.exp(-d) - 1 + d for d in held.values()) / len(held))
        assert one["max_abs"] == pytest.approx(max(map(abs, held.values())))
        assert (one["standard_error"] is None) == (one["sequences"] < 2)
    assert sum(one["tokens"] for one in found) == sum(lengths)
    assert [one["first"] for one in by_position([3], differences[2:], edges=(8, 16))] == [0]  # what is empty is out
