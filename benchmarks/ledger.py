"""The study's task, whose answers are longer than the demo's: a column of digits is added up, every total written out.

    "a7b5c9="  ->  "a7:007 b5:012 c9:021"

A line is the entry's key and digit, copied from the prompt, and the total so far; the last total is the result. The
teacher forgets a carry now and then ("b5:002") and goes on from there, so one slip spoils the answer.
"""

import random
import string
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from launch.demo.model import SUMS
from launch.demo.tasks import Problem

KEYS = string.ascii_lowercase
LINE = len("a7:007 ")
EXAM, EXAM_SEED = 256, 1 << 32  # problems; the first seed that a study's cannot be


@dataclass(frozen=True)
class Ledger:
    """Columns of `shortest` to `longest` digits; `slips` is the share of carries that the teacher forgets."""

    shortest: int
    longest: int
    slips: float
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
