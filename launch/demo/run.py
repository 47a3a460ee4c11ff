"""The demo from beginning to end: model and data, warm-up, one verl run for each arm, report."""

import time
from math import isnan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeRemainingColumn
from rich.table import Table

from launch.demo.recipe import Choices, prompts_a_step
from launch.demo.report import build_report, draw, replica_summary, summary, write_report
from launch.demo.tasks import write_parquet
from launch.demo.training import Watched, train_arm


def run_demo(choices: Choices, out: Path, console: Console) -> dict[str, Any]:
    """Run everything, leave report.json and report.png in `out`, and return the report."""
    started = time.monotonic()
    prompts = choices.steps * prompts_a_step(choices.device)
    write_parquet(out / "prompts.parquet", prompts, choices.seed, choices.setup.task)
    with progress(console) as bars:
        warm_up(choices, out, bars)
        watched = {arm: run_arm(choices, arm, out, bars) for arm in choices.arms}
    report = build_report(choices, out, watched, time.monotonic() - started)
    write_report(report, out / "report.json")
    draw(report, out / "report.png")
    console.print(table(report))
    console.print(f"{report['seconds'] / 60:.1f} min, peak memory {report['hardware']['peak_memory_gib']} GiB")
    console.print(f"report: {out / 'report.json'} and report.png", soft_wrap=True)
    return report


def progress(console: Console) -> Progress:
    """Bars with the time left."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=console,
    )


def warm_up(choices: Choices, out: Path, bars: Progress) -> None:
    """Make the common start of all arms."""
    from launch.demo.warmup import make_start

    plan = choices.setup.warm_up
    bar = bars.add_task("warm-up", total=plan.longest + plan.fall)
    accuracy = make_start(
        choices.device,
        choices.model,
        choices.seed,
        out / "start",
        lambda done: bars.update(bar, completed=done),
    )
    bars.update(bar, description=f"warm-up: {accuracy:.0%} right")


def run_arm(choices: Choices, arm: str, out: Path, bars: Progress) -> Watched:
    """Train one arm under a bar of its own."""
    bar = bars.add_task(f"{arm}: verl starts, about 80 s", total=choices.steps)
    return train_arm(choices, arm, out, lambda done: bars.update(bar, description=f"{arm}: training", completed=done))


def table(report: dict[str, Any]) -> Table:
    """One row for each arm, and for each replica where an arm has several."""
    columns = ("rollout", "reward", "k3_kl mean", "ESS min", "refit ms", "step s", "tokens/s", "rollout tokens/s")
    columns += ("start s",)
    result = Table(*columns, title=f"{report['task']} ({report['model']}, {report['rollout_is']}-level TIS)")
    for arm in report["arms"]:
        numbers = summary(arm)
        reward = f"{numbers['start_reward']:.3f} -> {numbers['final_reward']:.3f}"
        speed = (f"{numbers['step_s_median']:.1f}", f"{numbers['tokens_s_median']:.0f}")
        speed += (f"{numbers['rollout_tokens_s_median']:.0f}", f"{arm['start_seconds']:.0f}")
        result.add_row(arm["name"], reward, *cells(numbers), *speed)
        for replica in arm.get("replicas", ()):
            result.add_row(f" {replica['name']}", "", *cells(replica_summary(replica)))
            result.caption = "refit ms: of a run, all of the weight sync; of a replica, its engine's part"
    return result


def cells(numbers: dict[str, float]) -> tuple[str, str, str]:
    """Mismatch, effective sample size and refit time."""
    ess = "-" if isnan(numbers["ess_min"]) else f"{numbers['ess_min']:.4f}"  # without importance weights
    return f"{numbers['k3_kl_mean']:.2e}", ess, f"{numbers['refit_ms_median']:.0f}"
