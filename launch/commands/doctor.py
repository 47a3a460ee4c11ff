"""Looks at what is here before a run, or after one: `run.sh doctor`; changes nothing."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.exits import WRONG_USE, fail
from launch.commands.recipe import Changes, pairs

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
    mismatch: Annotated[
        Path | None,
        typer.Option(help="With --recipe: a report of `ascend-quant mismatch --json`; what would be left of a batch?"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what would stop a run, with a fix for each finding. Changes nothing.

    Exit status: 0 where all is well, or warnings only; 1 where an error was found; 2 for wrong use.
    """
    from rich.console import Console

    from launch.doctor.checking import show
    from launch.errors import LaunchError
    from launch.plan.job import must_be_said
    from launch.recipes import RecipeError

    try:
        must_be_said({"--cluster": cluster, "--recipe": recipe, "--model": model, "--data": data, "--out": out})
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    of_recipe = {"--set": changes, "--model": model, "--data": data, "--out": out, "--mismatch": mismatch}
    if recipe is None and (given := [name for name, value in of_recipe.items() if value]):
        fail(f"{given[0]} is for --recipe: say which", WRONG_USE)
    try:
        report = examined(cluster, recipe, changes or [], model, data, out, mismatch)
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
    mismatch: Path | None,
) -> "Report":
    """The report.

    Raises:
        LaunchError, RecipeError: what is wrong with the options, a line each.
    """
    from rich.console import Console

    from launch.doctor.hosts import examine
    from launch.doctor.run import kl_of
    from launch.inventory import load, this_machine
    from launch.plan.job import places
    from launch.plan.make import locals_of, new_run
    from launch.recipes import load as load_recipe

    recipe = load_recipe(name, changes=pairs(changes)) if name is not None else None
    inventory, paths = load(cluster) if cluster is not None else None, None
    kl = kl_of(mismatch, recipe) if recipe is not None and mismatch is not None else None
    if recipe is not None:
        hosts = inventory or this_machine(recipe.stack)
        paths = places(recipe, hosts, new_run(), locals_of(hosts)[0], model, data, out)
    with Console(stderr=True).status("examining"):
        return examine(inventory, recipe, paths, kl)
