"""./run.sh bench study: does a policy that samples with INT8 weights learn what one with BF16 weights learns?

A run of verl's GRPO for each kind of rollout, learning rate and seed, from a model that is made and warmed up here, as
in the demo. Arms are compared with BF16 rollouts of the same seed and rate, so what seeds share falls out of the
difference.
"""

import json
import random
import string
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, product
from math import nan, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from ascend_quant.demo import DemoError
from ascend_quant.demo.report import FINAL_STEPS, arm_report
from ascend_quant.demo.task import SUMS, TINY, Problem, write_parquet
from ascend_quant.demo.training import Choices, Setup, WarmUp, load_recipe, train
from benchmarks.report import Outcome, console, faults_of, show_faults, table_of
from benchmarks.tasks import choices, in_turn, numbers

KEYS = string.ascii_lowercase
LINE = len("a7:007 ")
LOOK_EVERY, PASSED = 50, 0.98  # updates; of the exam's answers
EXAM, EXAM_SEED = 256, 1 << 32  # problems; the first seed that a study's cannot be
ARMS = ("bf16", "int8", "int8-exact", "int8-uncorrected", "fp8")  # of the demo
RATE = "actor_rollout_ref.actor.optim.lr"
PANELS = {"reward": "reward", "k3_kl": "mismatch KL (k3)", "ess": "effective sample size (of 1)"}


@dataclass(frozen=True)
class Ledger:
    """Task of the study, whose answers are longer than the demo's: digits are added up, every total written out.

        "a7b5c9="  ->  "a7:007 b5:012 c9:021"

    A line is the entry's key and digit, copied from the prompt, and the total so far; the last total is the result. The
    teacher forgets a share `slips` of the carries ("b5:002") and goes on from there, so one slip spoils the answer.
    Columns have `shortest` to `longest` digits.
    """

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


@dataclass(frozen=True)
class UntilLearnt(WarmUp):
    """Warm-up whose rate rises, stays until the likeliest answers are right, and falls for `updates` only then."""

    longest: int = 2500  # updates until it falls, at most
    ramp: int = 50
    falls: list[int] = field(default_factory=list)  # the update from which it falls, once that is known

    def rate(self, update: int, model: Any) -> float | None:
        if update == 0:
            self.falls.clear()
        if not self.falls and (update == self.longest or (update % LOOK_EVERY == 0 and likeliest(model) >= PASSED)):
            self.falls.append(update)
        if not self.falls:
            return self.learning_rate * min((update + 1) / self.ramp, 1)
        return super().rate(update - self.falls[0], model)


def likeliest(model: Any) -> float:
    """Return the share of the exam's answers of which every token is the likeliest after those before it."""
    import torch

    from ascend_quant.demo.warmup import IGNORED, encode

    task = STUDY.task
    tokens, labels = encode([(problem.prompt, problem.answer) for problem in task.exam()], task)
    with torch.no_grad():
        found = model(input_ids=tokens).logits[:, :-1].argmax(-1)
    targets = labels[:, 1:]
    return ((found == targets) | (targets == IGNORED)).all(-1).float().mean().item()


# One core learns it in two minutes; what the last updates change least is how uncertain the carries are.
STUDY = Setup(
    recipe="study",
    task=Ledger(8, 10, slips=0.2),
    shape=TINY | {"max_position_embeddings": 128},
    warm_up=UntilLearnt(200, batch=64, learning_rate=2e-3, band=(0.2, 0.6), seconds=1800),
)

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Cell:
    """One training of the grid; `rate` as the user wrote it."""

    arm: str
    rate: str
    seed: int
    steps: int

    def title(self) -> str:
        """Return the cell's name for a line of progress, and its file."""
        return f"seed{self.seed}-lr{self.rate}-{self.arm}"

    def choices(self) -> Choices:
        """Return the choices that the demo's training is given."""
        return Choices((self.arm,), self.steps, self.seed, "qwen2", STUDY)


@app.command()
def main(
    arms: Annotated[str, typer.Option(help=f"Comma-separated arms: {', '.join(ARMS)}.")] = ",".join(ARMS),
    rates: Annotated[str, typer.Option(help="Comma-separated learning rates.")] = "1e-4,1e-5,1e-6",
    seeds: Annotated[str, typer.Option(help="Comma-separated seeds.")] = "0,1",
    steps: Annotated[int | None, typer.Option(min=2, help="Steps per training.  [default: the recipe's]")] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Time limit of one training, including its start.")] = 3600,
    folder: Annotated[Path, typer.Option(help="Folder for models, logs and finished trainings.")] = Path("runs/study"),
) -> None:
    """Train the cells of a grid one after another; those that lie in the folder are not trained again.

    Exit status: 0; 1 if a training fails; 2 for wrong use.
    """
    chosen, folder = choices("--arms", arms, ARMS), folder.resolve()
    wanted = choices("--rates", rates, [f"{digit}e-{power}" for power in range(2, 9) for digit in range(1, 10)])
    count = steps or load_recipe(STUDY.recipe)["trainer"]["total_training_steps"]
    grid = product(numbers("--seeds", seeds, least=0), wanted, chosen)
    cells = [Cell(arm, rate, seed, count) for seed, rate, arm in grid]

    outcomes = in_turn(cells, seconds, lambda done: None, lambda cell, limit: trained(cell, folder, limit))
    table = table_of("Mean of the last steps", ("lr", "rollout"), ("seeds", "first", *PANELS, "less BF16's", "±"))
    for row in rows_of(outcomes):
        figures = (row["first"], *(row[name] for name in PANELS), row["gap"], row["gap_error"])
        table.add_row(row["rate"], row["arm"], str(row["seeds"]), *(f"{one:.3g}" for one in figures))
    console().print(table)
    show_faults(faults_of(outcomes), console())
    raise typer.Exit(bool(faults_of(outcomes)))


def trained(cell: Cell, folder: Path, seconds: float) -> Outcome:
    """Return a cell's steps, from its record or by a training of at most `seconds`."""
    record, began = folder / "cells" / f"{cell.title()}-{cell.steps}.json", time.monotonic()
    if record.exists():
        return Outcome(cell, 0.0, json.loads(record.read_text()))
    place = folder / f"seed{cell.seed}" / f"lr{cell.rate}"
    try:
        changes = start_of(cell, folder) | {RATE: float(cell.rate)}
        train(cell.choices(), cell.arm, place, lambda steps: None, changes, seconds)
    except DemoError as error:
        return Outcome(cell, time.monotonic() - began, None, f"{cell.title()}: {error}")
    steps = arm_report(cell.arm, place / cell.arm / "metrics.jsonl")["steps"]
    result = {name: [step.get(name) for step in steps] for name in PANELS}
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(result))
    return Outcome(cell, time.monotonic() - began, result)


def start_of(cell: Cell, folder: Path) -> dict[str, str]:
    """Return verl's keys for the model and the prompts of a seed, which are made unless they are there."""
    from ascend_quant.demo.warmup import make_start

    seed, told = folder / f"start-seed{cell.seed}", cell.choices()
    if not (seed / "start").exists():
        make_start(told, seed / "making")
        (seed / "making").rename(seed / "start")  # never half a model under this name
    data = seed / f"prompts{told.prompts}.parquet"
    write_parquet(data, told.prompts, cell.seed, told.setup.task)
    keys = ("data.train_files", "data.val_files")
    return {"actor_rollout_ref.model.path": str(seed / "start")} | dict.fromkeys(keys, str(data))


def series(result: dict, name: str) -> list[float]:
    """Return a metric step by step; NaN where the arm has none."""
    return [nan if value is None else value for value in result[name]]


def last(result: dict, name: str) -> float:
    """Return the mean of a metric over the last steps."""
    return fmean(series(result, name)[-FINAL_STEPS:])


def by_place(outcomes: Sequence[Outcome]) -> dict[tuple[str, str], dict[int, dict]]:
    """Group what was measured by rate and arm, then by seed."""
    found: dict[tuple[str, str], dict[int, dict]] = defaultdict(dict)
    for one in outcomes:
        if one.result is not None:
            found[one.task.rate, one.task.arm][one.task.seed] = one.result
    return found


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """Return a row for each rate and arm: means over seeds; the last reward less BF16's, with its standard error."""
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


def asked(digits: list[int]) -> str:
    """Return the prompt."""
    return "".join(f"{key}{digit}" for key, digit in zip(KEYS, digits, strict=False)) + "="


def written(digits: list[int], totals: list[int]) -> str:
    """Return the answer with these totals, right or wrong."""
    lines = zip(KEYS, digits, totals, strict=False)
    return " ".join(f"{key}{digit}:{total:03d}" for key, digit, total in lines)


def running(digits: list[int], rng: random.Random | None = None, slips: float = 0.0) -> list[int]:
    """Return the totals line by line; with `rng`, a share `slips` of the carries is forgotten."""
    total, totals = 0, []
    for digit in digits:
        carries = total % 10 + digit >= 10
        forgotten = rng is not None and carries and rng.random() < slips
        total += digit - (10 if forgotten else 0)
        totals.append(total)
    return totals


if __name__ == "__main__":
    app()
