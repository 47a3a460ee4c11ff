"""The benchmark that trains the demo in longer answers: prompts and answers fit the lengths that verl is told."""

from itertools import islice

import pytest

from benchmarks.demo_lengths import lengths
from launch.demo.tasks import Ledger


@pytest.mark.parametrize("lines", [4, 16])
def test_prompts_and_answers_fit(lines: int):
    task = Ledger(lines, lines)
    told = lengths(task)
    for problem in islice(task.problems(0), 50):
        assert len(problem.prompt) == told["data.max_prompt_length"]
        assert len(problem.answer) + 1 == told["data.max_response_length"]  # a token a letter, and the end
    whole = told["data.max_prompt_length"] + told["data.max_response_length"]
    assert told["actor_rollout_ref.rollout.max_model_len"] > whole
