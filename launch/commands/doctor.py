"""Looks at what is here before a run, or after one: `run.sh doctor`, `bundle` and `manifest`; changes nothing."""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.exits import FAILED, WRONG_USE, fail
from launch.commands.recipe import Changes, pairs
from launch.root import is_folder

if TYPE_CHECKING:
    from launch.doctor.checking import Report


def doctor(
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Look also at what this recipe needs.")] = None,
    changes: Changes = None,
    model: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    data: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    out: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what would stop a run, with a fix for each finding. Changes nothing.

    Exit status: 0 where all is well, or warnings only; 1 where an error was found; 2 for wrong use.
    """
    from rich.console import Console

    from launch.doctor.table import show
    from launch.errors import LaunchError
    from launch.plan.job import must_be_said
    from launch.recipes import RecipeError

    try:
        must_be_said({"--cluster": cluster, "--recipe": recipe, "--model": model, "--data": data, "--out": out})
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    of_recipe = {"--set": changes, "--model": model, "--data": data, "--out": out}
    if recipe is None and (given := [name for name, value in of_recipe.items() if value]):
        fail(f"{given[0]} is for --recipe: say which", WRONG_USE)
    try:
        report = examined(cluster, recipe, changes or [], model, data, out)
    except (LaunchError, RecipeError) as error:
        fail(str(error), WRONG_USE)
    if as_json:
        typer.echo(report.as_json())
    else:
        show(report, Console())
    raise typer.Exit(report.exit_code)


def examined(
    cluster: str | None,
    name: str | None,
    changes: Sequence[str],
    model: str | None,
    data: str | None,
    out: str | None,
) -> "Report":
    """The report.

    Raises:
        LaunchError, RecipeError: what is wrong with the options, a line each.
    """
    from rich.console import Console

    from launch.doctor.hosts import examine
    from launch.inventory import load, this_machine
    from launch.plan.job import places
    from launch.plan.make import locals_of, new_run
    from launch.recipes import load as load_recipe

    recipe = load_recipe(name, changes=pairs(changes)) if name is not None else None
    inventory, paths = load(cluster) if cluster is not None else None, None
    if recipe is not None:
        hosts = inventory or this_machine(recipe.stack)
        paths = places(recipe, hosts, new_run(), locals_of(hosts)[0], model, data, out)
    with Console(stderr=True).status("examining"):
        return examine(inventory, recipe, paths)


def bundle(
    run: Annotated[
        str | None,
        typer.Argument(help="The run that it is about: its id or its folder, as runs/RUN.  [default: none]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The archive.  [default: ascend-quant-DATE.tar.gz]")] = None,
    cluster: Annotated[str | None, typer.Option(help="Look at all hosts of this inventory.")] = None,
) -> None:
    """Collect what a bug report needs: versions, variables, the doctor's findings, and a run's record and logs.

    Secrets are taken out: values of settings and variables that are named like one, and logins of addresses. Names of
    hosts, paths and addresses stay. Look through it before you send it.

    Exit status: 0; 1 if the archive cannot be written; 2 for wrong use.
    """
    from rich.console import Console

    from launch import bundle as made
    from launch.cluster.record import RUNS, Record, folder_of
    from launch.doctor.hosts import examine
    from launch.errors import LaunchError
    from launch.inventory import load
    from launch.plan.job import must_be_said
    from launch.recipes import RecipeError

    file = out or Path(time.strftime("ascend-quant-%Y%m%d-%H%M%S.tar.gz"))
    if not is_folder(file.absolute().parent):
        fail(f"--out {file}: there is no folder {file.absolute().parent}", WRONG_USE)
    if os.path.lexists(file):
        fail(f"--out {file}: is there already, and is kept: name another file", WRONG_USE)
    try:
        must_be_said({"RUN": run, "--cluster": cluster})
        record = Record.load(folder_of(run, RUNS)) if run is not None else None
        inventory = load(cluster) if cluster is not None else None
        with Console(stderr=True).status("examining"):
            report = examine(inventory)
    except (LaunchError, RecipeError) as error:
        fail(str(error), WRONG_USE)
    try:
        names = made.write(file, report, record, os.environ)
    except OSError as error:
        fail(f"--out {file}: cannot be written: {error.strerror}", FAILED)
    typer.echo(f"written: {file} ({file.stat().st_size:,} bytes): {len(names)} files: {', '.join(names[:4])} ..")
    typer.echo("Secrets are taken out by their names. Names of hosts, paths and addresses stay: look through it first.")


def manifest(as_json: Annotated[bool, typer.Option("--json", help="Print JSON alone.")] = False) -> None:
    """What this image is made of: packages, commits, CANN, CUDA, chip, kernels. For `docker run IMAGE manifest`."""
    from launch.errors import LaunchError
    from launch.images.manifest import manifest as look

    try:
        found = look(os.environ)
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    typer.echo(found.as_json() if as_json else "\n".join(found.lines()), nl=not as_json)
