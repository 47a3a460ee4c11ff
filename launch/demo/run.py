"""The demo from its options to its report: model and data, warm-up, one verl run for each arm, the table of results.

The options are checked before anything is made: one line says which value is wrong and which are right.
"""

import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress

from launch.demo.report import build_report, draw, table, write_report
from launch.demo.task import write_parquet
from launch.demo.training import ARMS, Choices, load_recipe, train


class OptionError(ValueError):
    """A bad option; the message is one line for the user."""


def choices(arms: str, steps: int | None, seed: int, model: str) -> Choices:
    """The checked options; `steps` are the recipe's by default.

    Raises:
        OptionError: an arm is not known, or named twice.
    """
    names = tuple(name.strip() for name in arms.split(","))
    if unknown := [name for name in names if name not in ARMS]:
        raise OptionError(f"--arms {unknown[0]!r}: choose from {', '.join(ARMS)}")
    if len(set(names)) < len(names):
        raise OptionError(f"--arms {arms!r}: names an arm twice")
    return Choices(names, load_recipe()["steps"] if steps is None else steps, seed, model)


def check_folder(out: Path) -> None:
    """Make the folder of a result, which must not be mixed with other files.

    Raises:
        OptionError: something is in it, or it cannot be made.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        other = next(out.iterdir(), None)
    except OSError as error:
        raise OptionError(f"--out {str(out)!r}: cannot be made: {error.strerror}; give another folder") from error
    if other is not None:
        raise OptionError(f"--out {str(out)!r}: is not empty, it holds {other.name}; give a new folder")


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
