"""The demo's task: two-operand addition ("7+5=" -> "12"), small enough to enumerate every problem.

The warm-up has a careless teacher, who often subtracts instead; the reward never does.
"""

import random
from dataclasses import dataclass
from pathlib import Path

LARGEST_OPERAND = 9
DESCRIPTION = f"addition of two numbers up to {LARGEST_OPERAND}"


@dataclass(frozen=True)
class Problem:
    """One prompt, its only right answer, and the careless teacher's mistake."""

    prompt: str
    answer: str
    mistake: str


def all_problems() -> list[Problem]:
    """Every pair of operands once, in order."""
    operands = range(LARGEST_OPERAND + 1)
    return [Problem(f"{a}+{b}=", str(a + b), str(abs(a - b))) for a in operands for b in operands]


def verl_row(problem: Problem, index: int) -> dict:
    """One row in the layout of verl's RLHF datasets."""
    return {
        "data_source": "addition",
        "ability": "math",
        "prompt": [{"role": "user", "content": problem.prompt}],
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": index},
    }


def write_parquet(path: Path, prompts: int, seed: int) -> None:
    """Write `prompts` rows: round after round of all problems, each round in its own order."""
    import pandas

    rng = random.Random(seed)
    asked: list[Problem] = []
    while len(asked) < prompts:
        asked += rng.sample(all_problems(), k=len(all_problems()))
    rows = [verl_row(problem, index) for index, problem in enumerate(asked[:prompts])]
    pandas.DataFrame(rows).to_parquet(path)
