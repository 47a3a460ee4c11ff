"""`run.sh stop`: end what a run started, on every host, and nothing else."""

from typing import Annotated

import typer

from launch.commands.ending import WRONG_USE, fail


def stop(
    run: Annotated[
        str | None, typer.Argument(help="The run's id, or its folder.  [default: the one that runs]")
    ] = None,
) -> None:
    """End what a run started, on every host, by id and nothing else. From another terminal, or after a crash."""
    from launch.cluster.stop import stop as stop_run
    from launch.errors import LaunchError

    try:
        code = stop_run(run)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    raise typer.Exit(code)
