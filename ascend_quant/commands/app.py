"""The command line `ascend-quant`; the commands that come from FlashRL keep its names and flags."""

from typing import Annotated

import typer

from ascend_quant import __version__
from ascend_quant.commands.advise import advise
from ascend_quant.commands.convert import convert
from ascend_quant.commands.data import data
from ascend_quant.commands.demo import demo
from ascend_quant.commands.export import export
from ascend_quant.commands.flashrl import cleanup, setup
from ascend_quant.commands.mismatch import mismatch
from ascend_quant.commands.profile import profile
from ascend_quant.commands.recipe import recipe_app
from ascend_quant.commands.smoke import smoke

app = typer.Typer(
    name="ascend-quant",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"ascend-quant {__version__}")
        raise typer.Exit


@app.callback()
def about(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Print the version.")] = False,
) -> None:
    """Tools for RL rollouts whose weights are re-quantized in place at every training step."""


for command in (advise, convert, data, demo, export, mismatch, profile, setup, cleanup, smoke):
    app.command()(command)
app.add_typer(recipe_app, name="recipe")
