"""What a task of the demo is: problems with one right answer each, and the lessons of a careless teacher.

The warm-up imitates the teacher, whose answers are wrong often enough that RL has something to put right.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class Problem:
    """A prompt, the only right answer as a model should write it, and what the reward compares (see reward.py)."""

    prompt: str
    answer: str
    result: str


class Task(Protocol):
    """Problems without end; the same seed draws the same.

    Attributes:
        name: of the data's source.
        description: for people.
        alphabet: the characters of prompts and answers, a token each.
        width: tokens of the longest prompt with its answer and the end token.
    """

    name: str
    description: str
    alphabet: str
    width: int

    def problems(self, seed: int) -> Iterator[Problem]:
        """What the model is asked, in order."""

    def lessons(self, seed: int, size: int) -> Iterator[list[tuple[str, str]]]:
        """Batches of prompts with the careless teacher's answers."""

    def exam(self) -> list[Problem]:
        """What the warm-up's accuracy is computed over."""


def verl_row(task: Task, problem: Problem, index: int) -> dict:
    """One row in the layout of verl's RLHF datasets."""
    return {
        "data_source": task.name,
        "ability": "math",
        "prompt": [{"role": "user", "content": problem.prompt}],
        "reward_model": {"style": "rule", "ground_truth": problem.result},
        "extra_info": {"index": index},
    }


def write_parquet(path: Path, prompts: int, seed: int, task: Task) -> None:
    """Write the first `prompts` problems."""
    import pandas

    asked = islice(task.problems(seed), prompts)
    pandas.DataFrame([verl_row(task, problem, index) for index, problem in enumerate(asked)]).to_parquet(path)
