"""python -m benchmarks.train: how long a recipe's training steps take, stage by stage, with each rollout scheme."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.schemes import SCHEMES
from benchmarks import train_report
from benchmarks.machine import ROOT, hardware
from benchmarks.models import MODELS, get_model
from benchmarks.refit import choices, in_turn
from benchmarks.report import console
from benchmarks.rollout import SHORT
from benchmarks.tasks import Outcome
from benchmarks.timing import rotated
from benchmarks.train_files import WHOLE
from benchmarks.train_run import Arm, carry_out, model_of
from launch.recipes import RecipeError, load

RECIPE = {"cuda": "qwen2.5-7b-int8-gsm8k-h100", "cpu": "addition-int8"}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="-- OVERRIDES", help="Settings of verl, over the recipe's: key=value.")
    ] = None,
    recipe: Annotated[str, typer.Option(help="Which one.  [default: by device]")] = "",
    model: Annotated[str, typer.Option(help=f"Its shape: {', '.join(SHORT)}.  [default: the recipe's]")] = "",
    layers: Annotated[int | None, typer.Option(help="Cut the model to so many layers.  [default: all]")] = None,
    arms: Annotated[str, typer.Option(help="Schemes of the rollout, with commas.")] = "bf16,int8",
    answers: Annotated[str, typer.Option(help="Tokens of each answer, with commas.")] = "1024,4096,8192",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    gpus: Annotated[int, typer.Option(min=1, help="Devices of this machine.")] = 2,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices of an engine.")] = 1,
    steps: Annotated[int, typer.Option(min=2, help="Of each training; the first is shown apart.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Trainings of each arm, in rotated order.")] = 1,
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a field of the recipe; repeatable.")
    ] = None,
    seconds: Annotated[int, typer.Option(min=1, help="Of one training, its start included.")] = 1800,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    folder: Annotated[Path, typer.Option(help="Where models and logs stay.")] = Path("runs/bench-train"),
    out: Annotated[Path | None, typer.Option(help="Where every step goes; written after each training.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the stages are drawn (.png).")] = None,
) -> None:
    """Train a recipe with random weights of its true shape and answers of one length.

    Exit status: 0; 1 if an arm fails; 2 for wrong use.
    """
    choices("--device", device, tuple(RECIPE))
    lengths = lengths_of(answers)
    chosen = asked_for(recipe or RECIPE[device], model, device)
    check_layers(chosen[1], layers)
    given = {"prompt": prompt, "steps": steps, "gpus": gpus, "device": device, "tensor_parallel": tensor_parallel}
    given["layers"] = layers
    given |= {"changes": tuple(changes or ()), "overrides": tuple(overrides or ())}
    tasks = [
        Arm(*chosen, scheme, answer=answer, turn=turn, **given)
        for answer in lengths
        for turn in range(repeats)
        for scheme in rotated(choices("--arms", arms, tuple(SCHEMES)), turn)
    ]
    try:
        for task in tasks:
            task.loaded()
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    folder = folder.resolve()
    make_model(tasks[0], folder / "models")

    described = hardware(device).get("gpus", [])

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            train_report.write_json(out, device, outcomes)
        if picture is not None:
            train_report.draw(outcomes, described, picture)

    def measure(task: Arm, limit: float) -> Outcome:
        return carry_out(task, folder / "models", folder / "logs", limit)

    outcomes = in_turn(tasks, seconds, write, measure)
    train_report.show(outcomes, described, console())
    raise typer.Exit(bool(train_report.faults_of(outcomes)))


def lengths_of(said: str) -> list[int]:
    """Numbers of tokens with commas between them, each 2 or more."""
    words = [word.strip() for word in said.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) > 1 for word in words):
        raise typer.BadParameter(f"{said!r}: give numbers of tokens, such as 1024,4096", param_hint="--answers")
    return list(dict.fromkeys(int(word) for word in words))


def asked_for(recipe: str, model: str, device: str) -> tuple[str, str]:
    """The recipe, and the model whose shape it is to have."""
    try:
        own = model_of(load(recipe))
    except RecipeError as error:
        raise typer.BadParameter(str(error), param_hint="--recipe") from None
    if model:
        return recipe, SHORT[choices("--model", model, tuple(SHORT))[0]]
    if device == "cpu":
        return recipe, "tiny"
    if own not in MODELS:
        raise typer.BadParameter(f"no shape of {own} here: say one of {', '.join(SHORT)}", param_hint="--model")
    return recipe, own


def check_layers(model: str, layers: int | None) -> None:
    """Raise BadParameter unless the model can be cut to so many."""
    try:
        get_model(model).cut(layers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--layers") from None


def make_model(arm: Arm, folder: Path) -> None:
    """The checkpoint, unless an earlier run has left it there."""
    if (folder / arm.shape / WHOLE).exists():
        return
    command = [sys.executable, "-m", "benchmarks.train_files", str(folder / arm.shape), arm.model, arm.device]
    subprocess.run([*command, *([str(arm.layers)] if arm.layers else [])], cwd=ROOT, check=True)


if __name__ == "__main__":
    app()
