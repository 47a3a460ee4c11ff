"""`run.sh images lock STACK`: ask for every pin of a stack again, on a machine that reaches indexes and registries."""

from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail

WIDTH = 400  # of the table, whatever the terminal's: a digest that is cut off is none


def lock(
    stack: Annotated[
        str, typer.Argument(help="A stack, or a lock in docker/locks that is no stack's: npu-host, npu-2.7, uv, ..")
    ],
    check: Annotated[bool, typer.Option("--check", help="Show what would change; write nothing.")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="Take the newest of every package that the .in files leave open.")
    ] = False,
) -> None:
    """Refresh locks, digests and commits, and show the difference. Nothing else changes a pin.

    It says whom it asks. The locks of a stack are written together, or not at all.

    Exit status: 0; 1 if something was not reached and keeps its pin, with --check also if something would change; 2 for
    wrong use.
    """
    from rich.console import Console
    from rich.table import Table

    from launch.errors import LaunchError
    from launch.images.lock.packages import names
    from launch.images.lock.refresh import asked, refresh

    try:
        names(stack)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    for line in asked(stack):
        typer.echo(f"asking {line}", err=True)
    try:
        found = refresh(stack, upgrade)
    except LaunchError as error:
        fail(str(error), FAILED)
    console = Console()
    if found.changes:
        table = Table("file", "pin", "was", "is" if not check else "would be", box=None)
        for change in found.changes:
            table.add_row(change.file, change.what, change.old or "-", change.new or "-")
        Console(width=WIDTH).print(table)
    else:
        console.print(f"{stack}: no pin changes")
    for what, why in found.failures:
        console.print(f"{what}: {why}", style="red", markup=False, highlight=False, soft_wrap=True)
    if not check:
        found.write()
    raise typer.Exit(1 if found.failures or (check and found.files) else 0)


def try_out(
    stack: Annotated[str, typer.Argument(help="A stack, or a lock in docker/locks that is no stack's.")],
    scratch: Annotated[Path | None, typer.Option(help="Folder with room for the packages.")] = None,
) -> None:
    """Install the locks of a stack here, in a scratch environment, and import what they want. Needs the stack's Python.

    Exit status: 0; 1 if an import failed for a reason of its own, or nothing could be installed; 2 for wrong use.
    """
    import tempfile

    from launch.errors import LaunchError
    from launch.images.lock.packages import names
    from launch.images.lock.trial import try_locks

    try:
        names(stack)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        try:
            found = try_locks(stack, Path(folder), lambda what: typer.echo(what, err=True))
        except LaunchError as error:
            fail(str(error), FAILED)
    for name, why in found.absent.items():
        typer.echo(f"{name} could not be installed here: {why}")
    for one in found.imported:
        if one.error:
            ended = "fails" if one in found.failed else "lacks what is not here"
            typer.echo(f"{one.module} of {one.package} {ended}: {one.error}")
    good = sum(one.error is None for one in found.imported)
    typer.echo(f"{stack}: {good} of {len(found.imported)} modules were imported, {len(found.failed)} failed")
    raise typer.Exit(1 if found.failed else 0)
