"""`run.sh recipe list` and `recipe show`: what can be trained, and the command of verl that it becomes."""

from collections.abc import Sequence
from typing import Annotated

import typer

from launch.commands.ending import FAILED, WRONG_USE, fail

WIDTH = 110  # of the table: a name that is cut off can not be copied

recipe_app = typer.Typer(no_args_is_help=True, help="What can be trained: recipes in configs/recipes.")


def pairs(changes: Sequence[str]) -> dict[str, str]:
    """--set KEY=VALUE .. as a mapping."""
    if wrong := [change for change in changes if "=" not in change]:
        fail(f"--set {wrong[0]}: write KEY=VALUE, as --set nodes=1", WRONG_USE)
    return {key: value for key, _, value in (change.partition("=") for change in changes)}


@recipe_app.command("list")
def list_recipes(as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """The recipes there are."""
    from rich.console import Console
    from rich.table import Table

    from launch.recipes import RecipeError, command

    try:
        rows = command.rows()
    except RecipeError as error:
        fail(str(error), FAILED)
    if as_json:
        typer.echo(command.as_json([dict(zip(command.COLUMNS, row, strict=True)) for row in rows]))
        return
    table = Table(*command.COLUMNS, box=None)
    for column in table.columns:
        column.no_wrap = True
    for row in rows:
        table.add_row(*row)
    Console(width=max(Console().width, WIDTH)).print(table)


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .yaml file.")],
    model: Annotated[str | None, typer.Option(help="Folder of the model.  [default: its id on the hub]")] = None,
    data: Annotated[str, typer.Option(help="Folder of the data sets.")] = "data",
    out: Annotated[str | None, typer.Option(help="Folder of the result.  [default: runs/<name>]")] = None,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the recipe and what it becomes as JSON.")] = False,
) -> None:
    """A recipe as the command line of verl that it becomes."""
    from launch.recipes import RecipeError, command, load, paths_of

    try:
        recipe = load(name, changes=pairs(changes or []))
    except RecipeError as error:
        fail(str(error), FAILED)
    paths = paths_of(recipe, model, data, out)
    typer.echo(command.as_json(command.described(recipe, paths)) if as_json else command.shown(recipe, paths))
