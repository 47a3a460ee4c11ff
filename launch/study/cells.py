"""The trainings of a study: the start that the cells of a seed share, and each cell's record once it is trained.

OUT/seed0/start               the warmed-up model       OUT/seed0/lr1e-6/int8/     a cell's logs and metrics
OUT/seed0/prompts512.parquet  what it is asked          OUT/cells/NAME.json        its record: it is done
"""

import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rich.progress import Progress

from ascend_quant.documents import BadDocument, read_json
from ascend_quant.whole_file import write_whole
from launch.demo.report import PACKAGES, arm_report, hardware
from launch.demo.run import OptionError
from launch.demo.tasks import write_parquet
from launch.demo.training import POLL_SECONDS, Training, Watched
from launch.software import installed
from launch.study.grid import Cell, Grid, settings

KEPT = ("reward", "k3_kl", "ess")
DIGITS = 6  # of each number


def record_of(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.name}.json"


def prompts_of(grid: Grid, cell: Cell, out: Path) -> Path:
    """Named by their number: a study that was stopped before its first record may go on with other steps."""
    return out / f"seed{cell.seed}" / f"prompts{grid.choices(cell).prompts}.parquet"


def check_folder(grid: Grid, out: Path) -> None:
    """A folder holds one study: what differs between its cells is told by their names.

    Raises:
        OptionError: the cells in it are of another device, have another number of steps, or cannot be read.
    """
    for file in sorted((out / "cells").glob("*.json")):
        try:
            record = read_json(file)
        except BadDocument as error:
            raise OptionError(f"--out {out}: {error}; remove that file, and its cell is trained again") from error
        if (device := record["device"]) != grid.device:
            raise OptionError(f"--device {grid.device}: {out} holds cells of {device}; give another --out")
        if (count := len(record["metrics"]["reward"])) != grid.steps:
            raise OptionError(f"--steps {grid.steps}: {out} holds cells of {count} steps; give another --out")


def train_all(grid: Grid, out: Path, jobs: int, bars: Progress) -> None:
    """Train the cells that have no record yet, up to `jobs` of them at once.

    Raises:
        DemoError: one has failed; those that are done are kept.
    """
    left = [cell for cell in grid.cells() if not record_of(out, cell).exists()]
    whole = bars.add_task("cells", total=len(grid.cells()), completed=len(grid.cells()) - len(left))
    running: dict[Cell, tuple[Training, int]] = {}
    with ExitStack() as ends:
        while left or running:
            while left and len(running) < jobs:
                cell = left.pop(0)
                make_start(grid, cell, out, bars)
                training = begun(grid, cell, out)
                ends.callback(training.end)
                running[cell] = training, bars.add_task(f"{cell.name}: verl starts", total=grid.steps)
            for cell, (training, bar) in list(running.items()):
                if steps := training.look():
                    bars.update(bar, completed=steps, description=cell.name)
                if training.watched:
                    training.end()
                    bars.remove_task(bar)
                    del running[cell]
                    write_record(grid, cell, out, training.watched)
                    bars.advance(whole)
            time.sleep(POLL_SECONDS)


def make_start(grid: Grid, cell: Cell, out: Path, bars: Progress) -> None:
    """The model and the prompts of a seed, unless they are there."""
    from launch.demo.warmup import make_start

    folder, choices = out / f"seed{cell.seed}", grid.choices(cell)
    if not (folder / "start").exists():
        plan = grid.setup.warm_up
        bar = bars.add_task(f"seed {cell.seed}: warm-up", total=plan.longest + plan.fall)
        make_start(choices, folder / "making", lambda done: bars.update(bar, completed=done))
        (folder / "making").rename(folder / "start")  # never half a model under this name
        bars.remove_task(bar)
    if not (file := prompts_of(grid, cell, out)).exists():
        write_parquet(file, choices.prompts, cell.seed, grid.setup.task)


def begun(grid: Grid, cell: Cell, out: Path) -> Training:
    """A cell's training, under way."""
    seed = out / f"seed{cell.seed}"
    data = str(prompts_of(grid, cell, out))
    paths = {
        "actor_rollout_ref.model.path": str(seed / "start"),
        "data.train_files": data,
        "data.val_files": data,
    }
    return Training(grid.choices(cell), cell.arm, place(out, cell), changes=paths | settings(cell))


def place(out: Path, cell: Cell) -> Path:
    """Where verl runs."""
    return out / f"seed{cell.seed}" / f"lr{cell.rate}" / cell.arm


def write_record(grid: Grid, cell: Cell, out: Path, watched: Watched) -> None:
    """A cell is done with this."""
    report = arm_report(cell.arm, place(out, cell) / cell.arm / "metrics.jsonl")
    metrics = {name: [step.get(name) for step in report["steps"]] for name in KEPT}
    record = {
        "arm": cell.arm,
        "rate": cell.rate,
        "seed": cell.seed,
        "task": grid.setup.task.description,
        "device": grid.device,
        "hardware": hardware(watched.peak_memory, grid.device),
        "versions": installed(PACKAGES),
        "metrics": {name: [*map(rounded, values)] for name, values in metrics.items() if set(values) != {None}},
    }
    record_of(out, cell).parent.mkdir(parents=True, exist_ok=True)
    write_whole(record_of(out, cell), json.dumps(record) + "\n")


def rounded(number: float | None) -> float | None:
    """A number as it is kept; None where a step has none."""
    return None if number is None else float(f"{number:.{DIGITS}g}")


def records(grid: Grid, out: Path) -> list[dict[str, Any]]:
    """Those of the grid's cells that are done."""
    files = [record_of(out, cell) for cell in grid.cells()]
    return [read_json(file) for file in files if file.exists()]
