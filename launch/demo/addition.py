"""The task on CPUs: two-operand addition ("7+5=" -> "12"), small enough to enumerate every problem.

The careless teacher often subtracts instead; the reward never does.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from launch.demo.task import Problem
from launch.demo.tokenizer import SUMS

LARGEST_OPERAND = 9
TEACHER_RIGHT = 0.4  # of the answers; where one operand is 0, adding and subtracting agree and all are right


@dataclass(frozen=True)
class Addition:
    """All pairs of operands, round after round, each round in its own order."""

    name: str = "addition"
    description: str = f"addition of two numbers up to {LARGEST_OPERAND}"
    alphabet: str = SUMS
    width: int = len("9+9=18") + 1

    def problems(self, seed: int) -> Iterator[Problem]:
        rng = random.Random(seed)
        while True:
            yield from rng.sample(all_problems(), k=len(all_problems()))

    def lessons(self, seed: int, size: int) -> Iterator[list[tuple[str, str]]]:
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
        return all_problems()


def all_problems() -> list[Problem]:
    """Every pair of operands once, in order."""
    operands = range(LARGEST_OPERAND + 1)
    return [Problem(f"{a}+{b}=", str(a + b), str(a + b)) for a in operands for b in operands]


def mistake(problem: Problem) -> str:
    """The difference of the operands."""
    first, second = map(int, problem.prompt.removesuffix("=").split("+"))
    return str(abs(first - second))
