"""`ascend-quant data`, which `run.sh data` starts, too: data sets as Parquet files for verl."""

from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.datasets import DataError, Name, prepare
from ascend_quant.terminal.exits import FAILED, WRONG_USE, fail


def data(
    name: Annotated[Name, typer.Argument(help="Name of the data set.")],
    source: Annotated[
        str | None, typer.Option("--from", help="Folder of a downloaded copy.  [default: download from the hub]")
    ] = None,
    target: Annotated[str, typer.Option("--to", help="Folder that holds the data sets.")] = "data",
) -> None:
    """Prepare a data set as Parquet files for verl, from a local copy or from the hub.

    Your own files need no preparation: in a checkout, ./run.sh train RECIPE --data TRAIN.parquet,VALIDATION.parquet

    Exit status: 0 on success; 1 if the data set is not available, or differs from the published one; 2 for wrong usage.
    """
    from ascend_quant.terminal.progress import waiting

    if source and name == "addition":
        fail(f"--from {source}: addition is generated, not copied: remove --from", WRONG_USE)
    try:
        with waiting(f"preparing {name}"):
            lines = prepare(name, Path(source) if source else None, Path(target))
    except DataError as error:
        fail(str(error), FAILED)
    for line in lines:
        typer.echo(line)
