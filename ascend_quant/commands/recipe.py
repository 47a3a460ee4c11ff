"""`ascend-quant recipe list` and `show`: the recipes of this package, and the settings of verl that each makes."""

import json
from typing import Annotated

import typer

from ascend_quant.recipes import RecipeError, prefix
from ascend_quant.terminal.exits import WRONG_USE, fail

MAIN = "python -m ascend_quant.integrations.verl.main_ppo"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
recipe_app = typer.Typer(no_args_is_help=True, help="Recipes: settings of verl that go together.")


@recipe_app.command("list")
def list_recipes(as_json: AsJson = False) -> None:
    """List the recipes, with what each trains."""
    from ascend_quant.recipes.compose import summaries

    found = summaries()
    if as_json:
        typer.echo(json.dumps([{"recipe": name, "summary": summary} for name, summary in found.items()], indent=1))
        return
    width = max(map(len, found))
    for name, summary in found.items():
        typer.echo(f"{name:<{width}}  {summary}")


@recipe_app.command("show")
def show(
    name: Annotated[str, typer.Argument(help="A recipe's name.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(help="Overrides of Hydra, as scheme=bf16 trainer.save_freq=5.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the settings of verl that a recipe makes, and the command that trains it.

    Keys of verl are not checked here, but when the training starts.

    Exit status: 0 on success; 2 for a recipe, or a choice such as scheme=NAME, that does not exist.
    """
    from omegaconf import OmegaConf

    from ascend_quant.recipes.compose import alone, plain
    from ascend_quant.recipes.node import node_of

    try:
        tree = plain(alone(name, overrides or []))
        node_of(tree)
    except RecipeError as error:
        fail("\n".join(f"{prefix(name, error)}{line}" for line in str(error).splitlines()), WRONG_USE)
    if as_json:
        typer.echo(json.dumps(tree, indent=1))
        return
    typer.echo(f"# {' '.join([MAIN, f'+recipe={name}', *(overrides or [])])}")
    typer.echo(OmegaConf.to_yaml(OmegaConf.create(tree)), nl=False)
