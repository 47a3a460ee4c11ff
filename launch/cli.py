"""The commands of `run.sh`."""

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def commands() -> None:
    """INT8 rollouts for reinforcement learning: re-quantized in place after every training step."""


@app.command()
def demo(
    arms: Annotated[
        str | None,
        typer.Option(help="Rollouts to compare, with commas: a scheme, or a scheme-qat.  [default: bf16,int8]"),
    ] = None,
    hybrid: Annotated[
        bool, typer.Option("--hybrid", help="One int8 and one bf16 replica in one run; beside --arms if that is given.")
    ] = False,
    steps: Annotated[int | None, typer.Option(help="Training steps of each arm.  [default: the recipe's]")] = None,
    rollout_is: Annotated[str, typer.Option(help="Importance sampling level: token or sequence.")] = "token",
    seed: Annotated[int, typer.Option(help="Seeds the weights, the data and the sampling.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Folder of the result.  [default: runs/<time>]")] = None,
    model: Annotated[str, typer.Option(help="qwen2 or qwen3-moe.")] = "qwen2",
) -> None:
    """Train a tiny model with verl and vLLM on this CPU, with BF16 and with INT8 rollouts, and compare."""
    from launch.demo import options
    from launch.demo.errors import DemoError
    from launch.demo.run import run_demo

    folder = (out or Path("runs") / time.strftime("%Y%m%d-%H%M%S")).resolve()
    try:
        chosen = options.choices(arms, hybrid, steps, rollout_is, seed, model)
        options.check_folder(folder)
    except options.OptionError as error:
        stop(str(error), code=2)
    try:
        run_demo(chosen, folder, Console())
    except DemoError as error:
        stop(str(error), code=1)


recipe_app = typer.Typer(no_args_is_help=True, help="What can be trained: recipes in configs/recipes.")
app.add_typer(recipe_app, name="recipe")


@recipe_app.command("list")
def list_recipes(as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON.")] = False) -> None:
    """The recipes there are."""
    from rich.table import Table

    from launch.recipes import RecipeError, command

    try:
        rows = command.rows()
    except RecipeError as error:
        stop(str(error), code=1)
    if as_json:
        typer.echo(command.as_json([dict(zip(command.COLUMNS, row, strict=True)) for row in rows]))
        return
    table = Table(*command.COLUMNS)
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    Console().print(table)


@recipe_app.command("show")
def show_recipe(
    name: Annotated[str, typer.Argument(help="A recipe's name, or the path of a .yaml file.")],
    model: Annotated[str | None, typer.Option(help="Folder of the model.  [default: its id on the hub]")] = None,
    data: Annotated[str, typer.Option(help="Folder of the data sets.")] = "data",
    out: Annotated[str | None, typer.Option(help="Folder of the result.  [default: runs/<name>]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the recipe and what it becomes as JSON.")] = False,
) -> None:
    """A recipe as the command line of verl that it becomes."""
    from launch.recipes import Paths, RecipeError, command, load

    try:
        recipe = load(name)
    except RecipeError as error:
        stop(str(error), code=1)
    paths = Paths(model or recipe.model.hub, data, out or f"runs/{recipe.name}")
    typer.echo(command.as_json(command.described(recipe, paths)) if as_json else command.shown(recipe, paths))


def stop(message: str, code: int) -> None:
    """End with a message on stderr."""
    typer.echo(message, err=True)
    raise typer.Exit(code)
