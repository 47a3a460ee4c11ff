"""`run.sh doctor`: a look at this machine, or at every host of an inventory, before a run."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from launch.commands.ending import WRONG_USE, fail
from launch.commands.recipe import pairs

if TYPE_CHECKING:
    from launch.doctor import Report


def doctor(
    cluster: Annotated[
        str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
    ] = None,
    recipe: Annotated[str | None, typer.Option(help="Look also at what this recipe needs.")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    data: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    out: Annotated[str | None, typer.Option(help="With --recipe: as for train.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Look for what would stop a run, with a fix for each finding. Changes nothing.

    Ends with 0 (all well, or warnings only), 1 (an error was found) or 2 (wrong use).
    """
    from rich.console import Console

    from launch.doctor import show
    from launch.errors import LaunchError
    from launch.recipes import RecipeError

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
    cluster: str | None, name: str | None, changes: Sequence[str], model: str | None, data: str | None, out: str | None
) -> "Report":
    """The report.

    Raises:
        LaunchError, RecipeError: what is wrong with the options, a line each.
    """
    from rich.console import Console

    from launch.doctor import examine
    from launch.inventory import load, this_machine
    from launch.plan.make import locals_of, new_run
    from launch.plan.places import places
    from launch.recipes import load as load_recipe

    recipe = load_recipe(name, changes=pairs(changes)) if name else None
    inventory, paths = load(cluster) if cluster else None, None
    if recipe is not None:
        hosts = inventory or this_machine(recipe.stack)
        paths = places(recipe, hosts, new_run(), locals_of(hosts)[0], model, data, out)
    with Console(stderr=True).status("examining") as status:
        return examine(inventory, recipe, paths, status.update)
