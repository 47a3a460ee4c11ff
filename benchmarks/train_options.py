"""Options that the benchmarks that train have in common: which recipe, which shape, what is changed."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.models import MODELS, SHORT
from benchmarks.report import ROOT
from benchmarks.tasks import choices
from benchmarks.train_files import WHOLE
from benchmarks.train_run import Arm, model_of
from launch import LaunchError
from launch.recipes import load

RECIPE = {"cuda": "qwen2.5-7b-int8-gsm8k-h100", "cpu": "addition-int8"}

Overrides = Annotated[
    list[str] | None,
    typer.Argument(metavar="-- OVERRIDES", help="verl settings that override the recipe's, as key=value."),
]
Recipe = Annotated[str, typer.Option(help="Recipe to train.  [default: depends on the device]")]
Model = Annotated[str, typer.Option(help=f"Model shape: {', '.join(SHORT)}.  [default: the recipe's]")]
Layers = Annotated[int | None, typer.Option(help="Use only this many layers.  [default: all]")]
Changes = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Override a setting of the recipe; repeatable.")
]
Seconds = Annotated[int, typer.Option(min=1, help="Time limit of one training, including its start.")]
Device = Annotated[str, typer.Option(help="Device: cuda or cpu.")]


def ready(arms: Sequence[Arm], folder: Path) -> Path:
    """Return the folder, absolute, with the model that all arms train; made unless an earlier run has left it there.

    Raises:
        BadParameter: a recipe's fields do not go together; nothing has been made then.
    """
    try:
        for arm in arms:
            arm.loaded()
    except LaunchError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    folder = folder.resolve()
    make_model(arms[0], folder / "models")
    return folder


def asked_for(recipe: str, model: str, device: str) -> tuple[str, str]:
    """Return the recipe, and the model whose shape it is to have."""
    try:
        own = model_of(load(recipe))
    except LaunchError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    if model:
        return recipe, SHORT[choices("--model", model, tuple(SHORT))[0]]
    if device == "cpu":
        return recipe, "tiny"
    if own not in MODELS:
        raise typer.BadParameter(f"no shape of {own} here: say one of {', '.join(SHORT)}", param_hint="--model")
    return recipe, own


def make_model(arm: Arm, folder: Path) -> None:
    """Make the checkpoint, unless an earlier run has left it there."""
    if (folder / arm.shape / WHOLE).exists():
        return
    command = [sys.executable, "-m", "benchmarks.train_files", str(folder / arm.shape), arm.model, arm.device]
    subprocess.run([*command, *([str(arm.layers)] if arm.layers else [])], cwd=ROOT, check=True)
