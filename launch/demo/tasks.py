"""The demo's task: two-operand addition ("7+5=" -> "12"), and the lessons of a careless teacher.

It is small enough to enumerate every problem. The warm-up imitates the teacher, who often subtracts instead; the reward
never does, so RL has something to put right.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from launch.demo.model import SUMS

LARGEST_OPERAND = 9
TEACHER_RIGHT = 0.4  # of the answers; where one operand is 0, adding and subtracting agree and all are right


@dataclass(frozen=True)
class Problem:
    """A prompt, the only right answer as a model should write it, and what the reward compares (see reward.py)."""

    prompt: str
    answer: str
    result: str


@dataclass(frozen=True)
class Addition:
    """All pairs of operands.

    Attributes:
        name: of the data's source.
        description: for people.
        alphabet: the characters of prompts and answers, a token each.
        width: tokens of the longest prompt with its answer and the end token.
    """

    name: str = "addition"
    description: str = f"addition of two numbers up to {LARGEST_OPERAND}"
    alphabet: str = SUMS
    width: int = len("9+9=18") + 1

    def problems(self, seed: int) -> Iterator[Problem]:
        """What the model is asked, without end: round after round, each in its own order."""
        rng = random.Random(seed)
        while True:
            yield from rng.sample(all_problems(), k=len(all_problems()))

    def lessons(self, seed: int, size: int) -> Iterator[list[tuple[str, str]]]:
        """Batches of prompts with the careless teacher's answers, without end."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        problems = all_problems()
        while True:
            rows = torch.randint(len(problems), (size,), generator=generator).tolist()
            careful = (torch.rand(size, 1, generator=generator) < TEACHER_RIGHT).flatten().tolist()
            yield [
                (problem.prompt, problem.answer if right else mistake(problem))
                for problem, right in zip((problems[row] for row in rows), careful, strict=True)
            ]

    def exam(self) -> list[Problem]:
        """What the warm-up's accuracy is computed over."""
        return all_problems()


def all_problems() -> list[Problem]:
    """Every pair of operands once, in order."""
    operands = range(LARGEST_OPERAND + 1)
    return [Problem(f"{a}+{b}=", str(a + b), str(a + b)) for a in operands for b in operands]


def mistake(problem: Problem) -> str:
    """The difference of the operands."""
    first, second = map(int, problem.prompt.removesuffix("=").split("+"))
    return str(abs(first - second))


def verl_rows(prompts: int, seed: int, task: Addition) -> list[dict]:
    """The first `prompts` problems as rows of verl's RLHF datasets."""
    return [
        {
            "data_source": task.name,
            "ability": "math",
            "prompt": [{"role": "user", "content": problem.prompt}],
            "reward_model": {"style": "rule", "ground_truth": problem.result},
            "extra_info": {"index": index},
        }
        for index, problem in enumerate(islice(task.problems(seed), prompts))
    ]


def write_parquet(path: Path, prompts: int, seed: int, task: Addition) -> None:
    """Write the first `prompts` problems."""
    import pandas

    pandas.DataFrame(verl_rows(prompts, seed, task)).to_parquet(path)
