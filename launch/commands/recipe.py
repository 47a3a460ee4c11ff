"""`run.sh recipe list` and `show`: recipes and their verl settings."""

import json
import os
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from ascend_quant.commands.recipe import list_recipes
from ascend_quant.terminal.exits import WRONG_USE, fail

if TYPE_CHECKING:
    from launch.recipes import Recipe

RecipeName = Annotated[str, typer.Argument(help="A recipe's name, or the path of a .yaml file.")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; repeatable.")
]
DataOption = Annotated[
    str | None,
    typer.Option(help="Folder of the data sets on the hosts, or the files: TRAIN or TRAIN,VALIDATION."),
]
ModelOption = Annotated[
    str | None, typer.Option(help="Folder of the model on the hosts, or a hub id.  [default: the recipe's]")
]
ClusterOption = Annotated[
    str | None, typer.Option(help="An inventory's name, or the path of a .yaml file.  [default: this machine]")
]
DATA_FILES = (".parquet", ".json", ".jsonl")  # what verl reads
ClusterFile = Literal["slurm", "kuberay", "docker-compose"]
recipe_app = typer.Typer(no_args_is_help=True, help="List the recipes in configs/recipe, or show one.")
recipe_app.command("list")(list_recipes)


def of_data(changes: Sequence[str] | None, data: str | None) -> tuple[list[str], str | None]:
    """Return the recipe's overrides and the data folder: files in --data become overrides; one file serves for both.

    A value that is neither a folder nor files, by its commas and suffix, is an error.
    """
    made = list(changes or [])
    if not data or _is_folder(data):
        return made, data
    from launch.recipes.verl import text

    files = data.split(",")
    if not all(file.endswith(DATA_FILES) for file in files) or len(files) > 2:
        fail(
            f"--data {data}: give one file, or two as TRAIN,VALIDATION, that end in {', '.join(DATA_FILES)}; or a "
            "folder (with / at its end if its name looks like a file's)",
            WRONG_USE,
        )
    train, validation = os.path.abspath(files[0]), os.path.abspath(files[-1])
    own = {"name": None, "train": train, "validation": validation}
    return [*(f"recipe.data.{key}={text(value)}" for key, value in own.items()), *made], None


def _is_folder(data: str) -> bool:
    """Return whether --data is a folder here, or may be one on other hosts, as it has no comma and no file suffix."""
    like_files = "," in data or re.fullmatch(r"\.[A-Za-z]\w*", os.path.splitext(data)[1])
    return os.path.isdir(data) or not (like_files or os.path.isfile(data))


@recipe_app.command("show")
def show_recipe(
    name: RecipeName,
    model: ModelOption = None,
    data: DataOption = None,
    out: Annotated[str | None, typer.Option(help="Output folder.  [default: runs/<name>]")] = None,
    changes: Changes = None,
    as_file: Annotated[
        ClusterFile | None,
        typer.Option(
            "--as", help="Print a file that starts it instead: a script for sbatch, a RayJob, a compose file."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the recipe and what it expands to, as JSON.")] = False,
) -> None:
    """Print the verl command that a recipe expands to, or a file with which a cluster's own tool starts it."""
    from launch import LaunchError
    from launch.recipes import command, load, paths_of

    made, folder = of_data(changes, data)
    try:
        recipe = load(name, made)
        if as_file is not None:
            typer.echo(cluster_file(as_file, as_json, recipe, model, folder, out))
            return
    except LaunchError as error:
        fail(str(error), WRONG_USE)
    paths = paths_of(recipe, model, folder or "data", out)
    typer.echo(json.dumps(command.described(recipe, paths), indent=1) if as_json else command.shown(recipe, paths))


def cluster_file(
    form: ClusterFile, as_json: bool, recipe: "Recipe", model: str | None, data: str | None, out: str | None
) -> str:
    """Return the text of a file that starts a recipe; tools that read YAML read JSON, too."""
    import yaml

    from launch.cluster_files import compose, kuberay, slurm

    if form == "slurm":
        if as_json:
            fail("--json with --as slurm: a script for sbatch is no JSON; remove one of them", WRONG_USE)
        return slurm.script(recipe, model, data, out)
    made = kuberay.ray_job(recipe, model, data, out) if form == "kuberay" else compose.compose(recipe, model)
    as_text = json.dumps(made, indent=1)
    # without aliases for parts that occur twice
    return as_text if as_json else yaml.safe_dump(json.loads(as_text), sort_keys=False, width=10_000).rstrip()
