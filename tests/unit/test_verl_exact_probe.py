"""A probe's verdict: which of engine and trainer differs, where, on which rank; and which prompts it asks with."""

import pytest
import torch

pytest.importorskip("verl", reason="the verl adapter needs verl")

from naming import has_line_naming

from ascend_quant.integrations.verl.training.exact import probe as exact_probe
from ascend_quant.integrations.verl.training.exact.probe import Sampled, judge

ULP = 2.0**-23  # of values from 1 to 2


def sampled(length: int, prompt: int) -> Sampled:
    """A sequence whose log-probabilities are float32 between -2 and -1."""
    values = (-1 - torch.rand(length - 1, generator=torch.Generator().manual_seed(length))).tolist()
    return Sampled(list(range(length)), prompt, values[prompt - 1 :], values)


SEQUENCES = [sampled(9, 4), sampled(30, 20)]
EQUAL = [one.prefill for one in SEQUENCES]


def with_a_bit(rows, row, place):
    changed = [list(one) for one in rows]
    changed[row][place] -= ULP
    return changed


def test_three_ways_that_agree():
    found = judge(SEQUENCES, [EQUAL, None, EQUAL])
    assert (found.engine.tokens, found.trainer.tokens) == (5 + 10, 8 + 29)
    assert found.engine.unequal == found.trainer.unequal == found.worst.unequal == 0
    assert found.longest == 30


@pytest.mark.parametrize("row, place", [(0, 0), (1, 28)])
def test_a_rank_of_the_trainer_that_differs(row, place):
    """Tokens of the prompt count too."""
    found = judge(SEQUENCES, [EQUAL, with_a_bit(EQUAL, row, place)])
    assert found.engine.unequal == 0
    assert (found.trainer.unequal, found.trainer.max_diff, found.trainer.first) == (1, ULP, (row, place))
    assert found.worst == found.trainer
    assert has_line_naming(str(found), "prefill … agree", f"trainer … 1 of 37 … token {place} of sequence {row}")


def test_an_engine_whose_decode_differs():
    (first, second), decode = SEQUENCES, with_a_bit([one.decode for one in SEQUENCES], 1, 3)
    found = judge([first, second._replace(decode=decode[1])], [EQUAL])
    assert (found.engine.unequal, found.engine.first, found.trainer.unequal) == (1, (1, 3), 0)
    assert found.worst == found.engine


@pytest.mark.parametrize("longest", [4, 32, 500, 40_960])
def test_prompts_and_answers_fit(longest):
    asked, answer = exact_probe.prompts(words=50, longest=longest), exact_probe.answer_of(longest)
    lengths = [len(prompt) for prompt in asked]
    assert len(asked) == exact_probe.PROMPTS and lengths == sorted(lengths)
    assert lengths[0] >= 1 and lengths[-1] + answer < longest, "an engine generates one token more when it prefills"
    assert all(0 <= token < 50 for prompt in asked for token in prompt)
    assert lengths[-1] == min(exact_probe.LONGEST, longest - answer - 1)


@pytest.mark.parametrize("place, length", [(0, 1), (10, 11), (33, 40), (900, 1000), (999, 1000)])
def test_a_tokens_context_is_in_the_answer_where_it_can_be(place, length):
    tokens, longest = list(range(length)), 1000
    prompt, answer = exact_probe.around(tokens, place, longest)
    assert prompt == tokens[: len(prompt)] and prompt
    assert 1 <= answer <= exact_probe.ANSWER and len(prompt) + answer < longest
    assert len(prompt) <= max(place, 1) <= len(prompt) + answer
