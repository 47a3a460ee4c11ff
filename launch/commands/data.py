"""`run.sh data`: the data sets of the recipes, as the files that verl reads."""

from pathlib import Path
from typing import Annotated

import typer

from launch.commands.ending import FAILED, fail


def data(
    name: Annotated[str, typer.Argument(help="gsm8k, dapo-math-17k or addition.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder of a copy, as it was downloaded.  [default: from the hub]")
    ] = None,
    target: Annotated[Path, typer.Option("--to", help="Folder of the data sets.")] = Path("data"),
) -> None:
    """Prepare a data set: Parquet files for verl, from a local copy or from the hub."""
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from launch.data import DataError, prepare

    with Progress(*Progress.get_default_columns(), console=Console(stderr=True)) as bars:
        tasks: dict[str, TaskID] = {}

        def tell(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what)
            bars.update(tasks[what], completed=done, total=total)

        try:
            summary = prepare(name, source, target, tell)
        except DataError as error:
            fail(str(error), FAILED)
    for line in summary.lines():
        typer.echo(line)
