"""python -m benchmarks.rollout: how fast engines generate, scheme beside scheme; with --trace: what bounds them."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import generation, rollout_report
from benchmarks.models import MODELS
from benchmarks.refit import choices, in_turn
from benchmarks.report import console
from benchmarks.tasks import Outcome, Rollouts, Task
from benchmarks.timing import rotated

SECONDS = 900  # of one engine
SHORT = {name.partition("-")[2] if model.real else name: name for name, model in MODELS.items()}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    models: Annotated[str, typer.Option(help=f"With commas: {', '.join(SHORT)}.")] = "7b,32b,30b-a3b",
    schemes: Annotated[str, typer.Option(help=f"With commas: {', '.join(generation.SCHEMES)}.")] = ",".join(
        generation.SCHEMES
    ),
    batch: Annotated[str, typer.Option(help="Sequences at a time, with commas.")] = "64,256",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    answer: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 512,
    repeats: Annotated[int, typer.Option(min=1, help="Engines of each scheme, in rotated order.")] = 2,
    logprobs: Annotated[bool, typer.Option(help="Return each token's log-probability too.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Of the first repeat: where a step's time goes.")] = False,
    layers: Annotated[int | None, typer.Option(help="Cut the models to so many layers.  [default: all]")] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="Where every sample goes; written after each engine.")] = None,
) -> None:
    """Generate with random weights of true shapes in real vLLM engines.

    Exit status: 0; 1 if an engine fails; 2 for wrong use.
    """
    chosen = [SHORT[name] for name in choices("--models", models, tuple(SHORT))]
    wanted = choices("--schemes", schemes, tuple(generation.SCHEMES))
    rollouts = Rollouts(batches_of(batch), prompt, answer, logprobs, trace)
    choices("--device", device, ("cuda", "cpu"))
    if trace and device == "cpu":
        raise typer.BadParameter("only a GPU's steps can be traced", param_hint="--trace")
    if trace and answer < generation.TRACED_ANSWER:
        raise typer.BadParameter(f"a trace needs {generation.TRACED_ANSWER} tokens or more", param_hint="--answer")
    tasks = [
        Task("generation", model, device, layers, variant=scheme, rollouts=replace(rollouts, trace=trace and not turn))
        for model in chosen
        for turn in range(repeats)
        for scheme in rotated(wanted, turn)
    ]

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            rollout_report.write_json(out, device, outcomes)

    outcomes = in_turn(tasks, SECONDS, write)
    rollout_report.show(outcomes, console())
    raise typer.Exit(bool(rollout_report.faults_of(outcomes)))


def batches_of(said: str) -> tuple[int, ...]:
    """Numbers with commas between them, each 1 or more."""
    words = [word.strip() for word in said.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise typer.BadParameter(f"{said!r}: give numbers of sequences, such as 64,256", param_hint="--batch")
    return tuple(dict.fromkeys(int(word) for word in words))


if __name__ == "__main__":
    app()
