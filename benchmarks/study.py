"""./run.sh bench study: does a policy that samples with INT8 weights learn what one with BF16 weights learns?

A run of verl's GRPO for each kind of rollout, learning rate and seed, from a model that is made and warmed up here, as
in the demo. Arms are compared with BF16 rollouts of the same seed and rate, so what seeds share falls out of the
difference.
"""

import json
import re
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated

import typer

from benchmarks.ledger import Ledger
from benchmarks.report import Outcome, console, faults_of, show_faults, table_of, write_run
from benchmarks.tasks import choices, in_turn, numbers
from launch.demo import DemoError
from launch.demo.model import TINY
from launch.demo.report import FINAL_STEPS, arm_report
from launch.demo.tasks import write_parquet
from launch.demo.training import POLL_SECONDS, Choices, Setup, Training, WarmUp, load_recipe

ARMS = ("bf16", "int8", "int8-uncorrected", "int8-qat", "fp8")  # of the demo
RATES = re.compile(r"\d(\.\d+)?e-\d+")
RATE = "actor_rollout_ref.actor.optim.lr"
PANELS = {"reward": "reward", "k3_kl": "mismatch KL (k3)", "ess": "effective sample size (of 1)"}
# One core learns it in two minutes; what the last updates change least is how uncertain the carries are.
STUDY = Setup(
    recipe="study",
    task=Ledger(8, 10, slips=0.2),
    shape=TINY | {"max_position_embeddings": 128},
    warm_up=WarmUp(2500, fall=200, batch=64, learning_rate=2e-3, ramp=50, band=(0.2, 0.6), seconds=1800),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Cell:
    """One training; `rate` as the user wrote it."""

    arm: str
    rate: str
    seed: int
    steps: int

    def title(self) -> str:
        """For a line of progress, and its file."""
        return f"seed{self.seed}-lr{self.rate}-{self.arm}"

    def choices(self) -> Choices:
        """What the demo's training is told."""
        return Choices((self.arm,), self.steps, self.seed, "qwen2", STUDY)


@app.command()
def main(
    arms: Annotated[str, typer.Option(help=f"With commas: {', '.join(ARMS)}.")] = ",".join(ARMS),
    rates: Annotated[str, typer.Option(help="Learning rates, with commas.")] = "1e-4,1e-5,1e-6",
    seeds: Annotated[str, typer.Option(help="With commas.")] = "0,1",
    steps: Annotated[int | None, typer.Option(min=2, help="Of each training.  [default: the recipe's]")] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Of one training, the start included.")] = 3600,
    folder: Annotated[Path, typer.Option(help="Where models, logs and what is done stay.")] = Path("runs/study"),
    out: Annotated[Path | None, typer.Option(help="Where every step goes; written after each training.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the steps are drawn (.png).")] = None,
) -> None:
    """Train the cells of a grid one after another; those that lie in the folder are not trained again.

    Exit status: 0; 1 if a training fails; 2 for wrong use.
    """
    chosen, folder = choices("--arms", arms, ARMS), folder.resolve()
    wanted = [word.strip() for word in rates.split(",")]
    if wrong := [rate for rate in wanted if not RATES.fullmatch(rate)]:
        raise typer.BadParameter(f"{wrong[0]!r}: write a learning rate as 1e-6", param_hint="--rates")
    count = steps or load_recipe(STUDY.recipe)["steps"]
    grid = product(numbers("--seeds", seeds, least=0), wanted, chosen)
    cells = [Cell(arm, rate, seed, count) for seed, rate, arm in grid]

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            write_run(out, "benchmarks.study", "cpu", {"rows": rows_of(outcomes)}, outcomes)

    outcomes = in_turn(cells, seconds, write, lambda cell, limit: trained(cell, folder, limit))
    table = table_of("Mean of the last steps", ("lr", "rollout"), ("seeds", "first", *PANELS, "less BF16's", "±"))
    for row in rows_of(outcomes):
        figures = (row["first"], *(row[name] for name in PANELS), row["gap"], row["gap_error"])
        table.add_row(row["rate"], row["arm"], str(row["seeds"]), *(f"{one:.3g}" for one in figures))
    console().print(table)
    if picture is not None and rows_of(outcomes):
        draw(outcomes, picture)
    show_faults(faults_of(outcomes), console())
    raise typer.Exit(bool(faults_of(outcomes)))


def trained(cell: Cell, folder: Path, seconds: float) -> Outcome:
    """A cell's steps, from its record or by a training of so many seconds at most."""
    record, began = folder / "cells" / f"{cell.title()}-{cell.steps}.json", time.monotonic()
    if record.exists():
        return Outcome(cell, 0.0, json.loads(record.read_text()))
    place = folder / f"seed{cell.seed}" / f"lr{cell.rate}"
    try:
        training = Training(cell.choices(), cell.arm, place, changes=start_of(cell, folder) | {RATE: float(cell.rate)})
        try:
            while not training.ended:
                training.look()
                if time.monotonic() - began > seconds:
                    raise DemoError(f"it was stopped after {seconds:.0f} s")
                time.sleep(POLL_SECONDS)
        finally:
            training.end()
    except DemoError as error:
        return Outcome(cell, time.monotonic() - began, None, f"{cell.title()}: {error}")
    steps = arm_report(cell.arm, place / cell.arm / "metrics.jsonl")["steps"]
    result = {name: [step.get(name) for step in steps] for name in PANELS}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result))
    return Outcome(cell, time.monotonic() - began, result)


def start_of(cell: Cell, folder: Path) -> dict[str, str]:
    """verl's keys for the model and the prompts of a seed, which are made unless they are there."""
    from launch.demo.warmup import make_start

    seed, told = folder / f"start-seed{cell.seed}", cell.choices()
    if not (seed / "start").exists():
        make_start(told, seed / "making", lambda done: None)
        (seed / "making").rename(seed / "start")  # never half a model under this name
    data = seed / f"prompts{told.prompts}.parquet"
    write_parquet(data, told.prompts, cell.seed, told.setup.task)
    keys = ("data.train_files", "data.val_files")
    return {"actor_rollout_ref.model.path": str(seed / "start")} | dict.fromkeys(keys, str(data))


def series(result: dict, name: str) -> list[float]:
    """A metric step by step; NaN where the arm has none."""
    return [nan if value is None else value for value in result[name]]


def last(result: dict, name: str) -> float:
    """The mean of a metric over the last steps."""
    return fmean(series(result, name)[-FINAL_STEPS:])


def by_place(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], dict[int, dict]]:
    """What was measured, by rate and arm, then by seed."""
    found: dict[tuple[str, str], dict[int, dict]] = defaultdict(dict)
    for one in outcomes:
        if one.result is not None:
            found[one.task.rate, one.task.arm][one.task.seed] = one.result
    return found


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """Of each rate and arm: means over seeds; the last reward less that of BF16 rollouts, with its standard error."""
    rows, places = [], by_place(outcomes)
    for (rate, arm), cells in places.items():
        plain = places.get((rate, "bf16"), {})
        gaps = [last(cells[seed], "reward") - last(plain[seed], "reward") for seed in cells.keys() & plain.keys()]
        row = {"rate": rate, "arm": arm, "seeds": len(cells)}
        row["first"] = fmean(series(cell, "reward")[0] for cell in cells.values())
        row |= {name: fmean(last(cell, name) for cell in cells.values()) for name in PANELS}
        row["gap"] = fmean(gaps) if gaps else nan
        row["gap_error"] = stdev(gaps) / sqrt(len(gaps)) if len(gaps) > 1 else nan
        rows.append(row)
    return rows


def draw(outcomes: Sequence[Outcome], path: Path) -> None:
    """A row of panels for each rate; a line is an arm, the mean over its seeds."""
    from matplotlib.figure import Figure

    places = by_place(outcomes)
    rates = list(dict.fromkeys(rate for rate, _ in places))
    figure = Figure(figsize=(4.2 * len(PANELS), 3.2 * len(rates)), layout="constrained")
    panels = figure.subplots(len(rates), len(PANELS), squeeze=False)
    for (rate, arm), cells in places.items():
        for axes, (name, title) in zip(panels[rates.index(rate)], PANELS.items(), strict=True):
            means = [fmean(values) for values in zip(*(series(cell, name) for cell in cells.values()), strict=True)]
            axes.plot(range(1, len(means) + 1), means, label=arm, color=f"C{ARMS.index(arm)}")
            axes.set(title=f"lr {rate}: {title}", xlabel="step")
    panels[0][0].legend(title="rollout")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=100)


if __name__ == "__main__":
    app()
