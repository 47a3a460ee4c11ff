"""python -m benchmarks.apart: weight syncs to engines on devices of their own, by how they are sent.

Each arm is a training in which some devices generate and the others train (a recipe's `rollout.apart`). Its syncs are
timed by verl (`timing_s/update_weights`): weights leave the trainer, go through verl's checkpoint engine (NCCL, HCCL),
are written by the engine and proved. How far the devices are from one another is the environment's: with
NCCL_P2P_DISABLE=1 NCCL_SHM_DISABLE=1 two devices of one host speak through sockets, as hosts over Ethernet do.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from benchmarks.bars import Bar, at_most
from benchmarks.fewer_devices import fields_for
from benchmarks.refit import choices, in_turn
from benchmarks.report import bars_table, console, write_run
from benchmarks.rollout import SHORT
from benchmarks.tasks import Outcome
from benchmarks.train import RECIPE, asked_for, check_layers, make_model
from benchmarks.train_run import Arm, carry_out
from launch.recipes import RecipeError, load

SENDS = ("bf16", "int8", "delta")
SETTLED = 1  # steps whose syncs are left out: a delta is sent from the third sync on, and one is before the first step
TIMED, SENT = "timing_s/update_weights", "refit/bytes_sent"
MOST = {  # the issue's bars, of BF16's
    "int8": {"median_s": 0.6, "bytes": 0.55},
    "delta": {"median_s": 0.15, "bytes": 0.05},
}
OPTIMIZER = "actor_rollout_ref.actor.optim"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass(frozen=True)
class Apart(Arm):
    """One training.

    Attributes:
        send: how the trainer sends what the engine quantizes.
        engines: of the devices, that generate.
    """

    send: str = "bf16"
    engines: int = 1

    def title(self) -> str:
        """For a line of progress."""
        return f"{self.shape} apart, send {self.send}"

    @property
    def file_name(self) -> str:
        """Of its log."""
        return f"{self.shape}-apart-{self.send}"

    def fields(self) -> dict[str, object]:
        """Parallelism is over the devices that train."""
        trains = self.gpus - self.engines
        trainer = fields_for(load(self.recipe), trains, self.prompt, self.answer, self.tensor_parallel)
        apart = {"devices_per_node": self.gpus, "rollout.apart": self.engines, "rollout.send": self.send}
        return super().fields() | trainer | apart


@app.command()
def main(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="-- OVERRIDES", help="Settings of verl, over the recipe's: key=value.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Which one.  [default: by device]")] = "",
    model: Annotated[str, typer.Option(help=f"Its shape: {', '.join(SHORT)}.  [default: the recipe's]")] = "",
    layers: Annotated[int | None, typer.Option(help="Cut the model to so many layers.  [default: all]")] = None,
    arms: Annotated[str, typer.Option(help=f"What is sent, with commas: {', '.join(SENDS)}.")] = ",".join(SENDS),
    answer: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 16,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 12,
    learning_rate: Annotated[float, typer.Option(help="On which it depends how many codes change.")] = 1e-6,
    gpus: Annotated[int, typer.Option(min=2, help="Devices of this machine.")] = 2,
    engines: Annotated[int, typer.Option(min=1, help="Devices of these that generate.")] = 1,
    steps: Annotated[int, typer.Option(min=SETTLED + 2, help="Of each training; a sync follows each.")] = 5,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Of one training, its start included.")] = 900,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    folder: Annotated[Path, typer.Option(help="Where models and logs stay.")] = Path("runs/bench-apart"),
    out: Annotated[Path | None, typer.Option(help="Where every step goes; written after each training.")] = None,
) -> None:
    """Train a recipe a few short steps on some devices while others generate, and time each weight sync.

    Exit status: 0; 1 if an arm fails; 2 for wrong use.
    """
    choices("--device", device, tuple(RECIPE))
    if engines >= gpus:
        raise typer.BadParameter(f"{engines} of {gpus} devices leave none that trains", param_hint="--engines")
    shape = asked_for(recipe or RECIPE[device], model, device)
    check_layers(shape[1], layers)
    rate = (f"{OPTIMIZER}.lr={learning_rate}", f"{OPTIMIZER}.lr_warmup_steps=0")
    given = {"prompt": prompt, "answer": answer, "steps": steps, "gpus": gpus, "engines": engines, "device": device}
    given |= {"layers": layers, "changes": tuple(changes or ()), "overrides": (*rate, *(overrides or ()))}
    tasks = [Apart(*shape, "int8", send=send, **given) for send in choices("--arms", arms, SENDS)]
    try:
        for task in tasks:
            task.loaded()
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    folder = folder.resolve()
    make_model(tasks[0], folder / "models")

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            write_json(out, device, outcomes)

    outcomes = in_turn(
        tasks, seconds, write, lambda task, limit: carry_out(task, folder / "models", folder / "logs", limit)
    )
    show(outcomes)
    raise typer.Exit(bool(faults_of(outcomes)))


def row_of(outcome: Outcome) -> dict | None:
    """An arm's medians over its settled syncs; None where there are none."""
    syncs = [line["data"] for line in (outcome.result or {}).get("steps", ())[SETTLED:]]
    if not syncs:
        return None
    took = [data[TIMED] for data in syncs]
    logged = {
        name: median(data[name] for data in syncs if name in data)
        for name in sorted(set().union(*syncs))
        if name.startswith("refit/") and name.count("/") == 1
    }
    return {"model": outcome.task.shape, "send": outcome.task.send, "syncs": len(syncs), "seconds": took} | {
        "median_s": median(took),
        "bytes": logged[SENT],
        "logged": logged,
    }


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """One of each arm that was measured."""
    return [row for outcome in outcomes if (row := row_of(outcome)) is not None]


def bars_of(rows: Sequence[dict]) -> list[Bar]:
    """The issue's, which are for the whole 7B on GPUs: elsewhere the ratios are shown, and not judged."""
    base = next((row for row in rows if row["send"] == "bf16"), None)
    if base is None:
        return []
    found = [
        at_most(f"{row['send']}: {name.removesuffix('_s')}, of BF16's", most, row[name] / base[name])
        for row in rows
        for name, most in MOST.get(row["send"], {}).items()
    ]
    return [Bar(text, target, value, None) for text, target, value, _ in found]


def faults_of(outcomes: Sequence[Outcome]) -> list[str]:
    """Arms that failed, and syncs that were not proved whole."""
    found = [outcome.error for outcome in outcomes if outcome.result is None]
    for outcome in outcomes:
        found += (outcome.result or {}).get("faults", ())
        for line in (outcome.result or {}).get("steps", ()):
            proved, all_of_them = line["data"].get("refit/proved"), line["data"].get("refit/tensors")
            if not proved or proved != all_of_them:
                found.append(f"{outcome.task.title()}: step {line['step']}: {proved} of {all_of_them} tensors proved")
    return found


def write_json(path: Path, device: str, outcomes: Sequence[Outcome]) -> None:
    """Every step, and each arm's medians."""
    rows = rows_of(outcomes)
    content = {
        "rows": rows,
        "bars": [asdict(bar) for bar in bars_of(rows)],
        "faults": faults_of(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_run(path, "benchmarks.apart", device, content)


def show(outcomes: Sequence[Outcome]) -> None:
    """An arm a line, the ratios, and last what is wrong."""
    out, rows = console(), rows_of(outcomes)
    if rows:
        title = f"A weight sync of {rows[0]['model']} to engines apart, medians; {outcomes[0].task.gpus} devices"
        table = Table(title=title)
        for heading in ("sent", "syncs", "seconds", "lowest", "highest", "MB sent", "codes changed", "proved"):
            table.add_column(heading, justify="left" if heading == "sent" else "right")
        for row in rows:
            took, logged = row["seconds"], row["logged"]
            numbers = (f"{one:.3f}" for one in (row["median_s"], min(took), max(took)))
            rest = f"{1e-6 * row['bytes']:.1f}", f"{logged['refit/changed']:.2%}", f"{logged['refit/proved']:.0f}"
            table.add_row(row["send"], str(row["syncs"]), *numbers, *rest)
        out.print(table)
    if bars := bars_of(rows):
        out.print(bars_table(bars))
    for fault in faults_of(outcomes):
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


if __name__ == "__main__":
    app()
