"""python -m benchmarks.train: how long a recipe's training steps take, stage by stage, with each rollout scheme."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.schemes import SCHEMES
from benchmarks import train_options, train_report
from benchmarks.machine import hardware
from benchmarks.refit import choices, in_turn
from benchmarks.report import console
from benchmarks.tasks import Outcome
from benchmarks.timing import rotated
from benchmarks.train_run import Arm, carry_out

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    overrides: train_options.Overrides = None,
    recipe: train_options.Recipe = "",
    model: train_options.Model = "",
    layers: train_options.Layers = None,
    arms: Annotated[str, typer.Option(help="Schemes of the rollout, with commas.")] = "bf16,int8",
    answers: Annotated[str, typer.Option(help="Tokens of each answer, with commas.")] = "1024,4096,8192",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    gpus: Annotated[int, typer.Option(min=1, help="Devices of this machine.")] = 2,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices of an engine.")] = 1,
    steps: Annotated[int, typer.Option(min=2, help="Of each training; the first is shown apart.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Trainings of each arm, in rotated order.")] = 1,
    changes: train_options.Changes = None,
    seconds: train_options.Seconds = 1800,
    device: train_options.Device = "cuda",
    folder: Annotated[Path, typer.Option(help="Where models and logs stay.")] = Path("runs/bench-train"),
    out: Annotated[Path | None, typer.Option(help="Where every step goes; written after each training.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where the stages are drawn (.png).")] = None,
) -> None:
    """Train a recipe with random weights of its true shape and answers of one length.

    Exit status: 0; 1 if an arm fails; 2 for wrong use.
    """
    choices("--device", device, tuple(train_options.RECIPE))
    lengths = lengths_of(answers)
    chosen = train_options.asked_for(recipe or train_options.RECIPE[device], model, device)
    train_options.check_layers(chosen[1], layers)
    given = {"prompt": prompt, "steps": steps, "gpus": gpus, "device": device, "tensor_parallel": tensor_parallel}
    given["layers"] = layers
    given |= {"changes": tuple(changes or ()), "overrides": tuple(overrides or ())}
    tasks = [
        Arm(*chosen, scheme, answer=answer, turn=turn, **given)
        for answer in lengths
        for turn in range(repeats)
        for scheme in rotated(choices("--arms", arms, tuple(SCHEMES)), turn)
    ]
    folder = train_options.ready(tasks, folder)

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


if __name__ == "__main__":
    app()
