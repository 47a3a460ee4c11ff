"""./run.sh bench train: how long a recipe's training steps take, stage by stage, with each rollout scheme."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from ascend_quant.schemes import SCHEMES
from benchmarks import train_options, train_report
from benchmarks.report import Outcome, console, faults_of, show_faults, write_run
from benchmarks.tasks import check_layers, choices, in_turn, numbers
from benchmarks.timing import rotated
from benchmarks.train_run import Arm, carry_out

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    overrides: train_options.Overrides = None,
    recipe: train_options.Recipe = "",
    model: train_options.Model = "",
    layers: train_options.Layers = None,
    arms: Annotated[str, typer.Option(help="Comma-separated rollout schemes, or int8-exact.")] = "bf16,int8",
    answers: Annotated[str, typer.Option(help="Comma-separated numbers of tokens per answer.")] = "1024,4096,8192",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 256,
    gpus: Annotated[int, typer.Option(min=1, help="Number of devices to use.")] = 2,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Tensor-parallel size of an engine.")] = 1,
    steps: Annotated[int, typer.Option(min=2, help="Steps per training; the first is reported separately.")] = 4,
    changes: train_options.Changes = None,
    seconds: train_options.Seconds = 1800,
    device: train_options.Device = "cuda",
    folder: Annotated[Path, typer.Option(help="Folder for models and logs.")] = Path("runs/bench-train"),
    out: Annotated[Path | None, typer.Option(help="File for all steps; written after each training.")] = None,
) -> None:
    """Train a recipe with random weights of its true shape and answers of one length.

    Exit status: 0; 1 if an arm fails; 2 for wrong use.
    """
    choices("--device", device, tuple(train_options.RECIPE))
    lengths = numbers("--answers", answers, least=2)
    chosen = train_options.asked_for(recipe or train_options.RECIPE[device], model, device)
    check_layers(chosen[1], layers)
    given = {"prompt": prompt, "steps": steps, "gpus": gpus, "device": device, "tensor_parallel": tensor_parallel}
    given["layers"] = layers
    given |= {"changes": tuple(changes or ()), "overrides": tuple(overrides or ())}
    every = choices("--arms", arms, (*SCHEMES, "int8-exact"))
    tasks = [
        Arm(*chosen, scheme, answer=answer, **given)
        for turn, answer in enumerate(lengths)
        for scheme in rotated(every, turn)
    ]
    folder = train_options.ready(tasks, folder)

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            rows = [asdict(row) for row in train_report.rows_of(outcomes)]
            write_run(out, "benchmarks.train", device, {"rows": rows}, outcomes)

    def measure(task: Arm, limit: float) -> Outcome:
        return carry_out(task, folder / "models", folder / "logs", limit)

    outcomes = in_turn(tasks, seconds, write, measure)
    train_report.show(outcomes, console())
    show_faults(faults_of(outcomes), console())
    raise typer.Exit(bool(faults_of(outcomes)))


if __name__ == "__main__":
    app()
