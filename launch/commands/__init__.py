"""The commands of `run.sh` that are written in Python, with their options."""

import typer

from launch.commands.doctor import doctor
from launch.commands.recipe import recipe_app
from launch.commands.train import node, stop, train

app = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.callback()
def commands() -> None:
    """INT8 rollouts for reinforcement learning: re-quantized in place after every training step."""


for command in (train, stop, doctor):
    app.command()(command)
app.command(hidden=True)(node)
app.add_typer(recipe_app, name="recipe")
