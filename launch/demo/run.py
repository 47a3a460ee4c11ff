"""The demo from its choices to its report: model and data, warm-up, one verl run for each arm, the table of results."""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from launch.demo.report import build_report, draw, table, write_report
from launch.demo.task import write_parquet
from launch.demo.training import Choices, train


def run_demo(choices: Choices, out: Path, console: Console) -> dict[str, Any]:
    """Run everything, leave report.json and report.png in `out`, and return the report.

    Raises:
        DemoError: the warm-up or an arm cannot go on.
    """
    started = time.monotonic()
    write_parquet(out / "prompts.parquet", choices.prompts, choices.seed, choices.setup.task)
    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), console=console) as bars:
        warm_up(choices, out, bars)
        for arm in choices.arms:
            run_arm(choices, arm, out, bars)
    report = build_report(choices, out, time.monotonic() - started)
    write_report(report, out / "report.json")
    draw(report, out / "report.png")
    console.print(table(report))
    console.print(f"{report['seconds'] / 60:.1f} min, report: {out / 'report.json'} and report.png", soft_wrap=True)
    return report


def warm_up(choices: Choices, out: Path, bars: Progress) -> None:
    """Make the common start of all arms."""
    from launch.demo.warmup import make_start

    plan = choices.setup.warm_up
    bar = bars.add_task("warm-up", total=plan.longest + plan.fall)
    accuracy = make_start(choices, out / "start", lambda done: bars.update(bar, completed=done))
    bars.update(bar, description=f"warm-up: {accuracy:.0%} right")


def run_arm(choices: Choices, arm: str, out: Path, bars: Progress) -> None:
    """Train one arm, with its bar."""
    bar = bars.add_task(f"{arm}: verl starts", total=choices.steps)

    def show(steps: int) -> None:
        if steps:
            bars.update(bar, description=f"{arm}: training", completed=steps)

    train(choices, arm, out, show)
