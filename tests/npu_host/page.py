"""docs/npu_ops.md: the calls of a whole run (conftest.py), and behind them what a refit costs (test_cost.py)."""

from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs/npu_ops.md"
COMMAND = "NPU_OPS=write ./run.sh test npu"
COST = "## What a refit costs\n"


def calls() -> str:
    return PAGE.read_text().partition(COST)[0]


def cost() -> str:
    _, heading, text = PAGE.read_text().partition(COST)
    return heading + text


def write_calls(text: str) -> None:
    PAGE.write_text(text + cost())


def write_cost(text: str) -> None:
    PAGE.write_text(calls() + text)
