"""The demo's tasks: problems with one right answer each, and the lessons of a careless teacher.

The warm-up imitates the teacher, whose answers are wrong often enough that RL has something to put right.

On CPUs it is two-operand addition ("7+5=" -> "12"), small enough to enumerate every problem. The teacher often
subtracts instead; the reward never does. On a GPU a column of digits is added up, and every running total written out,
as in a ledger:

    "a7b5c9="  ->  "a7:007 b5:012 c9:021"

A line is the entry's key and digit, copied from the prompt, and the total so far; the last total is the result. The
teacher forgets a carry now and then ("b5:002") and goes on from there, so one slip spoils the answer. With 20 lines
there are 9 carries: whoever forgets 9 % of them gets (1 - 0.09)^9 = 43 % of the results right.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

from launch.demo.model import SUMS

LARGEST_OPERAND = 9
TEACHER_RIGHT = 0.4  # of the answers; where one operand is 0, adding and subtracting agree and all are right
KEYS = string.ascii_lowercase + string.ascii_uppercase[:20]  # with the digits, signs and specials: 64 tokens
LINE = len("a7:007 ")
EXAM, EXAM_SEED = 256, 1 << 32  # problems; the first seed that the command line's cannot be


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


def verl_rows(prompts: int, seed: int, task: Task) -> list[dict]:
    """The first `prompts` problems."""
    return [verl_row(task, problem, index) for index, problem in enumerate(islice(task.problems(seed), prompts))]


def write_parquet(path: Path, prompts: int, seed: int, task: Task) -> None:
    """Write the first `prompts` problems."""
    import pandas

    pandas.DataFrame(verl_rows(prompts, seed, task)).to_parquet(path)


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


@dataclass(frozen=True)
class Ledger:
    """Columns of `shortest` to `longest` digits; `slips` is the share of carries that the teacher forgets."""

    shortest: int = 16
    longest: int = 24
    slips: float = 0.09
    name: str = "ledger"
    alphabet: str = SUMS + ":" + KEYS

    @property
    def description(self) -> str:
        return f"running totals of {self.shortest} to {self.longest} digits"

    @property
    def width(self) -> int:
        return self.longest * (len("a7") + LINE) + len("=")  # the last line has the end token in place of the blank

    def problems(self, seed: int) -> Iterator[Problem]:
        rng = random.Random(seed)
        while True:
            digits = self._digits(rng)
            yield Problem(asked(digits), written(digits, running(digits)), f"{sum(digits):03d}")

    def lessons(self, seed: int, size: int) -> Iterator[list[tuple[str, str]]]:
        rng = random.Random(seed)
        while True:
            columns = [self._digits(rng) for _ in range(size)]
            yield [(asked(digits), written(digits, running(digits, rng, self.slips))) for digits in columns]

    def exam(self) -> list[Problem]:
        return list(islice(self.problems(EXAM_SEED), EXAM))

    def _digits(self, rng: random.Random) -> list[int]:
        return [rng.randrange(10) for _ in range(rng.randint(self.shortest, self.longest))]


def asked(digits: list[int]) -> str:
    """The prompt."""
    return "".join(f"{key}{digit}" for key, digit in zip(KEYS, digits, strict=False)) + "="


def written(digits: list[int], totals: list[int]) -> str:
    """The answer with these totals, right or wrong."""
    lines = zip(KEYS, digits, totals, strict=False)
    return " ".join(f"{key}{digit}:{total:03d}" for key, digit, total in lines)


def running(digits: list[int], rng: random.Random | None = None, slips: float = 0.0) -> list[int]:
    """The totals line by line; with `rng`, this share of the carries is forgotten."""
    total, totals = 0, []
    for digit in digits:
        carries = total % 10 + digit >= 10
        forgotten = rng is not None and carries and rng.random() < slips
        total += digit - (10 if forgotten else 0)
        totals.append(total)
    return totals
