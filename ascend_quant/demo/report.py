"""The whole demo: model and data, warm-up, one verl run per arm, and the report.

The report consists of report.json, with metrics that verl logged for the arms, and report.png (with matplotlib): six
panels by step, with all arms in each. For an exact arm it includes the numbers of compared and of unequal tokens.
"""

import json
import time
from functools import partial
from importlib.util import find_spec
from math import isnan, nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console
from rich.progress import MofNCompleteColumn, TaskID
from rich.table import Table

from ascend_quant.demo import DemoError
from ascend_quant.demo.training import METRICS, QAT, Choices, is_corrected, is_exact, read_lines, scheme_of, train
from ascend_quant.terminal.progress import Bars

FIELDS = {
    "reward": "critic/rewards/mean",
    "k3_kl": "rollout_corr/k3_kl",
    "step_seconds": "timing_s/step",
    "refit_seconds": "timing_s/update_weights",
}
WEIGHT_FIELDS = {  # for arms with importance weights
    "is_mean": "rollout_corr/rollout_is_mean",
    "is_max": "rollout_corr/rollout_is_max",
    "ess": "rollout_corr/rollout_is_eff_sample_size",
}
EXACT_FIELDS = {  # for exact arms; in bypass mode verl 0.9.1 logs no rollout_corr/*
    "k3_kl": "exact/k3_kl",
    "compared": "exact/tokens",
    "unequal": "exact/unequal",
}
SPEED_FIELDS = {
    "rollout_seconds": "timing_s/gen",
    "update_seconds": "timing_s/update_actor",
    "answer_tokens": "response_length/mean",
    "tokens_per_second": "perf/throughput",  # prompts and answers over the whole step, per device
    "rollout_ms_per_token": "timing_per_token_ms/gen",  # over all tokens of answers
}
PREFIX = "refit/"
FINAL_STEPS = 5
LEAST_KL = 1e-6  # below it the axis is linear, so that it can show 0
PANELS = (
    ("reward", "reward (exact answers)", "linear"),
    ("k3_kl", "mismatch KL (k3), trainer against rollout", "symlog"),
    ("ess", "effective sample size (of 1)", "linear"),
    ("refit_seconds", "refit time (s)", "linear"),
    ("step_seconds", "time of a step (s)", "linear"),
    ("tokens_per_second", "tokens/s, over the whole step", "linear"),
)


def run_demo(choices: Choices, out: Path, console: Console) -> dict[str, Any]:
    """Run the whole demo, write report.json and report.png to `out`, and return the report.

    Raises:
        DemoError: the warm-up or an arm failed.
    """
    started = time.monotonic()
    with Bars(*Bars.get_default_columns(), MofNCompleteColumn(), console=console) as bars:
        from ascend_quant.demo.warmup import write_inputs

        bar = bars.add_task("warm-up", total=choices.setup.warm_up.updates)
        accuracy = write_inputs(choices, out, lambda done: bars.update(bar, completed=done))
        bars.update(bar, description=f"warm-up: {accuracy:.0%} right")
        for arm in choices.arms:
            bar = bars.add_task(f"{arm}: verl starts", total=choices.steps)
            train(choices, arm, out, partial(_show, bars, bar, arm))
    report = build_report(choices, out, time.monotonic() - started)
    (out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
    drawn = find_spec("matplotlib") is not None  # no package of the demo requires it
    if drawn:
        draw(report, out / "report.png")
    console.print(table(report))
    console.print(told(report), soft_wrap=True)
    picture = "and report.png" if drawn else "(no report.png: matplotlib is not installed)"
    console.print(f"{report['seconds'] / 60:.1f} min, report: {out / 'report.json'} {picture}", soft_wrap=True)
    return report


def _show(bars: Bars, bar: TaskID, arm: str, steps: int) -> None:
    if steps:
        bars.update(bar, description=f"{arm}: training", completed=steps)


def step_record(line: dict[str, Any], corrected: bool = True, exact: bool = False) -> dict[str, float]:
    """Return one step of the report; a metric that verl did not log is an error, not a gap in a plot.

    Args:
        corrected: whether the run has importance weights, whose metrics verl then logs.
        exact: whether its actor is exact, whose metrics are then logged.
    """
    return pick(line, FIELDS | (WEIGHT_FIELDS if corrected else {}) | (EXACT_FIELDS if exact else {}))


def pick(line: dict[str, Any], fields: dict[str, str]) -> dict[str, float]:
    missing = [name for name in fields.values() if line["data"].get(name) is None]
    if missing:
        raise DemoError(f"step {line['step']} has no {', '.join(missing)}: this verl does not log the metrics of 0.9.1")
    return {"step": line["step"]} | {field: line["data"][name] for field, name in fields.items()}


def receipt(line: dict[str, Any]) -> dict[str, float]:
    """Return the refit metrics of one step without their prefix, and without those of single replicas."""
    found = {name.removeprefix(PREFIX): value for name, value in line["data"].items() if name.startswith(PREFIX)}
    return {name: value for name, value in found.items() if "/" not in name}


def arm_report(name: str, metrics: Path) -> dict[str, Any]:
    """Return the report of one arm, step by step."""
    lines = read_lines(metrics)
    steps = [step_record(line, is_corrected(name), is_exact(name)) | pick(line, SPEED_FIELDS) for line in lines]
    return {
        "name": name,
        "scheme": scheme_of(name),
        "fake_quantization": scheme_of(name) if name.endswith(QAT) else None,
        "corrected": is_corrected(name),
        "steps": steps,
        "final_reward": fmean(step["reward"] for step in steps[-FINAL_STEPS:]),
        "receipts": [receipt(line) for line in lines],
    }


def build_report(choices: Choices, out: Path, seconds: float) -> dict[str, Any]:
    """Return the content of report.json; `seconds` is the duration of the whole demo, including warm-up and starts."""
    return {
        "arms": [arm_report(name, out / name / METRICS) for name in choices.arms],
        "task": choices.setup.task.description,
        "seed": choices.seed,
        "model": choices.model,
        "seconds": round(seconds, 1),
    }


def summary(arm: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of an arm's table row; `ess_min` is NaN without importance weights.

    `unequal` is the sum over all steps for an exact arm, otherwise NaN.
    """
    steps = arm["steps"]
    return {
        "start_reward": steps[0]["reward"],
        "final_reward": arm["final_reward"],
        "k3_kl_mean": fmean(step["k3_kl"] for step in steps),
        "unequal": sum(step.get("unequal", nan) for step in steps),
        "ess_min": min(step.get("ess", nan) for step in steps),
        "refit_ms_median": 1000 * median(step["refit_seconds"] for step in steps),
        "step_s_median": median(step["step_seconds"] for step in steps),
        "rollout_tokens_s_median": 1000 / median(step["rollout_ms_per_token"] for step in steps),
    }


def table(report: dict[str, Any]) -> Table:
    """Return a table with one row per arm, in 80 columns; the speed of the whole step is in report.json."""
    arms = report["arms"]
    last = min(FINAL_STEPS, *(len(arm["steps"]) for arm in arms))
    columns = {
        "start_reward": ("reward first", ".3f"),
        "final_reward": (f"reward last {last}", ".3f"),
        "k3_kl_mean": ("k3_kl mean", ".1e"),
        "unequal": ("unequal", ".0f"),
        "ess_min": ("ESS min", ".4f"),
        "refit_ms_median": ("refit ms", ".0f"),
        "step_s_median": ("step s", ".1f"),
        "rollout_tokens_s_median": ("tokens/s", ".0f"),
    }
    if not any(is_exact(arm["name"]) for arm in arms):
        del columns["unequal"]
    weights = ", token-level TIS" if any(is_corrected(arm["name"]) for arm in arms) else ""
    result = Table(title=f"{report['task']} ({report['model']}{weights})", box=None, collapse_padding=True)
    result.add_column("rollout", no_wrap=True)
    for title, _ in columns.values():
        result.add_column(title, justify="right", no_wrap=title == "tokens/s")
    for arm in arms:
        numbers = summary(arm)  # NaN: the arm has no importance weights, or does not count tokens
        cells = ("-" if isnan(numbers[name]) else format(numbers[name], form) for name, (_, form) in columns.items())
        result.add_row(arm["name"], *cells)
    return result


def told(report: dict[str, Any]) -> str:
    """Describe what the run has shown about its weight syncs, and what to do next."""
    verified = [receipt["verified"] for arm in report["arms"] for receipt in arm["receipts"]]
    least = f"in each at least {min(verified):.0f} parameters arrived as the trainer sent them, by their checksums"
    exact = "".join(
        f"{arm['name']}: {summary(arm)['unequal']:.0f} of {sum(step['compared'] for step in arm['steps']):.0f} tokens "
        "have another log-probability in the trainer than in the engine, compared as float32 bits. "
        for arm in report["arms"]
        if is_exact(arm["name"])
    )
    return f"{exact}{len(verified)} weight syncs: {least}. The columns, and what next: docs/first_day.md"


def draw(report: dict[str, Any], path: Path) -> None:
    """Plot the report's arms into one PNG."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (field, title, scale) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for arm in report["arms"]:
            # arms without importance weights have no effective sample size
            points = [(step["step"], step.get(field, nan)) for step in arm["steps"]]
            axes.plot(*zip(*points, strict=True), marker=".", label=arm["name"])
        axes.set(title=title, xlabel="step")
        if scale == "symlog":
            axes.set_yscale(scale, linthresh=LEAST_KL)
        else:
            axes.ticklabel_format(useOffset=False)  # print 0.9998 instead of 2 with the offset 1e-4+9.996e-1
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
    figure.axes[0].legend(title="rollout")
    figure.suptitle(f"{report['task']}, {report['model']}, seed {report['seed']}")
    figure.savefig(path, dpi=120)
