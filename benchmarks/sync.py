"""python -m benchmarks.sync: where the time of a weight sync under verl goes, stage by stage, on both of its sides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import sync_report, train_options
from benchmarks.machine import hardware
from benchmarks.refit import choices, in_turn
from benchmarks.report import console
from benchmarks.sync_measured import PLAIN, SETTLED
from benchmarks.sync_run import SENT, WAYS, Sync, measure
from benchmarks.tasks import Outcome

LEAST_STEPS = SETTLED + 1
NO_PLAIN = f"no {PLAIN} on a CPU: vLLM's own BF16 gives up its weights once they are packed; give int8,bf16"

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    overrides: train_options.Overrides = None,
    recipe: train_options.Recipe = "",
    model: train_options.Model = "",
    layers: train_options.Layers = None,
    arms: Annotated[
        str,
        typer.Option(
            help="With commas: int8 and bf16, our rollouts; codes, int8 whose trainer sends codes; plain, verl's own "
            "BF16, on GPUs."
        ),
    ] = "int8,bf16,plain",
    answer: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 16,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 12,
    gpus: Annotated[int, typer.Option(min=1, help="Devices of this machine.")] = 2,
    tensor_parallel: Annotated[int, typer.Option(min=1, help="Devices of an engine.")] = 1,
    steps: Annotated[
        int, typer.Option(min=LEAST_STEPS, help="Of each training; there is a sync before them, and one after each.")
    ] = 6,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the device after gathers, digests and loads: slower, and finer.")
    ] = False,
    changes: train_options.Changes = None,
    seconds: train_options.Seconds = 900,
    device: train_options.Device = "cuda",
    folder: Annotated[Path, typer.Option(help="Where models, logs and stamps stay.")] = Path("runs/bench-sync"),
    out: Annotated[Path | None, typer.Option(help="Where every sync's stages go; written after each training.")] = None,
    picture: Annotated[Path | None, typer.Option(help="Where one sync of each arm is drawn along time (.png).")] = None,
    calls: Annotated[bool, typer.Option("--calls", help="Show every stamped call too.")] = False,
) -> None:
    """Train a recipe a few short steps with random weights of its true shape, and time what each weight sync does.

    Exit status: 0; 1 if an arm fails, or its stamps are not complete; 2 for wrong use.
    """
    choices("--device", device, tuple(train_options.RECIPE))
    chosen = train_options.asked_for(recipe or train_options.RECIPE[device], model, device)
    ways = choices("--arms", arms, tuple(WAYS))
    if device == "cpu" and PLAIN in ways:
        raise typer.BadParameter(NO_PLAIN, param_hint="--arms")
    train_options.check_layers(chosen[1], layers)
    given = {"prompt": prompt, "answer": answer, "steps": steps, "gpus": gpus, "device": device, "layers": layers}
    given["tensor_parallel"] = tensor_parallel
    given["overrides"] = tuple(overrides or ())
    changed = {way: (*SENT.get(way, ()), *(changes or ())) for way in ways}
    tasks = [Sync(*chosen, WAYS[way], way=way, changes=changed[way], **given) for way in ways]
    folder = train_options.ready(tasks, folder)
    described = hardware(device).get("gpus", [])

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            sync_report.write_json(out, device, outcomes)
        if picture is not None:
            sync_report.draw(outcomes, described, picture)

    outcomes = in_turn(tasks, seconds, write, lambda task, limit: measure(task, folder, limit, wait))
    sync_report.show(outcomes, described, console())
    if calls:
        sync_report.show_calls(outcomes, console())
    raise typer.Exit(bool(sync_report.faults_of(outcomes)))


if __name__ == "__main__":
    app()
