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

from benchmarks import train_options
from benchmarks.bars import Bar, at_most, judged_bars
from benchmarks.machine import hardware
from benchmarks.refit import choices, in_turn
from benchmarks.report import bars_table, console, write_run
from benchmarks.tasks import Outcome
from benchmarks.train_run import TIMED, Arm, carry_out, medians_of_refits

SENDS = ("bf16", "int8", "delta")
SETTLED = 1  # steps whose syncs are left out: a delta is sent from the third sync on, and one is before the first step
SENT = "refit/bytes_sent"
JUDGED = "qwen2.5-7b"
MOST = {  # the issue's bars, of BF16's
    "int8": {"median_s": 0.6, "bytes": 0.55},
    "delta": {"median_s": 0.15, "bytes": 0.05},
}
OPTIMIZER = "actor_rollout_ref.actor.optim"
EAGER = "actor_rollout_ref.rollout.enforce_eager=True"  # no sync depends on graphs, and an engine starts sooner

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
        """The recipe's fields that are set before `changes`."""
        apart = {"devices_per_node": self.gpus, "rollout.apart": self.engines, "rollout.send": self.send}
        return super().fields() | apart

    @property
    def trained_on(self) -> int:
        """Devices that do not generate."""
        return self.gpus - self.engines


@app.command()
def main(
    overrides: train_options.Overrides = None,
    recipe: train_options.Recipe = "",
    model: train_options.Model = "",
    layers: train_options.Layers = None,
    arms: Annotated[str, typer.Option(help=f"What is sent, with commas: {', '.join(SENDS)}.")] = ",".join(SENDS),
    answer: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 16,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 12,
    learning_rate: Annotated[float, typer.Option(min=0, help="The larger, the more codes change in a step.")] = 1e-6,
    gpus: Annotated[int, typer.Option(min=2, help="Devices of this machine.")] = 2,
    engines: Annotated[int, typer.Option(min=1, help="How many of the devices generate; the others train.")] = 1,
    steps: Annotated[int, typer.Option(min=SETTLED + 2, help="Of each training; a sync follows each.")] = 5,
    changes: train_options.Changes = None,
    seconds: train_options.Seconds = 900,
    device: train_options.Device = "cuda",
    folder: Annotated[Path, typer.Option(help="Where models and logs stay.")] = Path("runs/bench-apart"),
    out: Annotated[Path | None, typer.Option(help="Where every step goes; written after each training.")] = None,
) -> None:
    """Train a recipe a few short steps on some devices while others generate, and time each weight sync.

    Exit status: 0; 1 if an arm fails; 2 for wrong use.
    """
    choices("--device", device, tuple(train_options.RECIPE))
    if engines >= gpus:
        raise typer.BadParameter(f"{engines} of {gpus} devices leave none that trains", param_hint="--engines")
    shape = train_options.asked_for(recipe or train_options.RECIPE[device], model, device)
    train_options.check_layers(shape[1], layers)
    rate = (f"{OPTIMIZER}.lr={learning_rate}", f"{OPTIMIZER}.lr_warmup_steps=0")
    given = {"prompt": prompt, "answer": answer, "steps": steps, "gpus": gpus, "engines": engines, "device": device}
    given |= {"layers": layers, "changes": tuple(changes or ()), "overrides": (EAGER, *rate, *(overrides or ()))}
    tasks = [Apart(*shape, "int8", send=send, **given) for send in choices("--arms", arms, SENDS)]
    folder = train_options.ready(tasks, folder)

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            write_json(out, device, outcomes)

    outcomes = in_turn(
        tasks, seconds, write, lambda task, limit: carry_out(task, folder / "models", folder / "logs", limit)
    )
    show(outcomes, bool(hardware(device).get("gpus")))
    raise typer.Exit(bool(faults_of(outcomes)))


def row_of(outcome: Outcome) -> dict | None:
    """An arm's medians over its settled syncs; None where there are none."""
    syncs = [line["data"] for line in (outcome.result or {}).get("steps", ())[SETTLED:]]
    if not syncs:
        return None
    took = [data[TIMED] for data in syncs]
    logged = medians_of_refits(syncs)
    return {"model": outcome.task.shape, "send": outcome.task.send, "syncs": len(syncs), "seconds": took} | {
        "median_s": median(took),
        "bytes": logged[SENT],
        "logged": logged,
    }


def rows_of(outcomes: Sequence[Outcome]) -> list[dict]:
    """One of each arm that was measured."""
    return [row for outcome in outcomes if (row := row_of(outcome)) is not None]


def bars_of(rows: Sequence[dict], judged: bool) -> list[Bar]:
    """The issue's, which are for the whole 7B on GPUs: elsewhere the ratios are shown, and not judged."""
    base = next((row for row in rows if row["send"] == "bf16"), None)
    if base is None:
        return []
    found = [
        at_most(f"{row['send']}: {name.removesuffix('_s')}, of BF16's", most, row[name] / base[name])
        for row in rows
        for name, most in MOST.get(row["send"], {}).items()
    ]
    return judged_bars(found, judged and base["model"] == JUDGED)


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
        "bars": [asdict(bar) for bar in bars_of(rows, bool(hardware(device).get("gpus")))],
        "faults": faults_of(outcomes),
        "outcomes": [asdict(outcome) for outcome in outcomes],
    }
    write_run(path, "benchmarks.apart", device, content)


def show(outcomes: Sequence[Outcome], judged: bool = False) -> None:
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
    if bars := bars_of(rows, judged):
        out.print(bars_table(bars))
    for fault in faults_of(outcomes):
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


if __name__ == "__main__":
    app()
