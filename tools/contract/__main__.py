"""`./run.sh lint --contract vllm==0.34.0`."""

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ascend_quant.integrations import seen
from launch import LaunchError
from tools.contract.check import OTHERS, read


def main(
    what: Annotated[
        str,
        typer.Argument(
            help="A release, as vllm==0.34.0; vllm for the newest one; or a folder with the unpacked release."
        ),
    ],
) -> None:
    """Read whether a release of vLLM, vllm-ascend or verl still has what is used of it; nothing of it is installed.

    Exit status: 0; 1 if a row is missing that the newest release in seen.toml has; 2 if it cannot be had or read.
    """
    try:
        title, readings = read(what)
    except LaunchError as error:
        raise typer.BadParameter(str(error), param_hint="WHAT") from error
    table = Table("feature", "rows", title=title, title_justify="left")
    table.add_column("missing", overflow="fold")
    for one in readings:
        table.add_row(one.feature, str(one.rows), "\n".join(one.problems) or "-")
    Console().print(table)
    known = {OTHERS, *seen.releases("cuda")[-1].lacks}
    raise typer.Exit(any(one.problems for one in readings if one.feature not in known))


if __name__ == "__main__":
    typer.run(main)
