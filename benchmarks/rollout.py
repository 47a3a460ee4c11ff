"""python -m benchmarks.rollout: how fast engines generate, scheme beside scheme; with --trace: what bounds them.

With --context: decode steps at these lengths, each scheme with each KV cache.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from benchmarks import decoding, decoding_report, generation, rollout_report
from benchmarks.caches import CACHES, ON_CPUS, OURS
from benchmarks.models import MODELS
from benchmarks.refit import choices, in_turn
from benchmarks.report import console
from benchmarks.tasks import Outcome, Rollouts, Task
from benchmarks.timing import rotated

SECONDS = 900  # of one engine
LONG = ("bf16", "int8-ours")  # schemes with --context, unless others are chosen
SHORT = {name.partition("-")[2] if model.real else name: name for name, model in MODELS.items()}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    models: Annotated[str, typer.Option(help=f"With commas: {', '.join(SHORT)}.")] = "7b,32b,30b-a3b",
    schemes: Annotated[
        str,
        typer.Option(
            help=f"With commas: {', '.join(generation.SCHEMES)}.  [default: all; with --context {', '.join(LONG)}]"
        ),
    ] = "",
    batch: Annotated[str, typer.Option(help="Sequences at a time, with commas.")] = "64,256",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens of each prompt.")] = 256,
    answer: Annotated[int, typer.Option(min=2, help="Tokens of each answer.")] = 512,
    context: Annotated[
        str, typer.Option(help="Decode at such lengths in the mean, with commas: 1k,8k,30k; in place of --prompt.")
    ] = "",
    kv_cache: Annotated[
        str,
        typer.Option(help=f"With --context, of quantized weights; with commas: {', '.join(CACHES)}."),
    ] = "auto,int8,fp8",
    repeats: Annotated[int, typer.Option(min=1, help="Engines of each scheme, in rotated order.")] = 2,
    logprobs: Annotated[bool, typer.Option(help="Return each token's log-probability too.")] = False,
    trace: Annotated[bool, typer.Option("--trace", help="Of the first repeat: where a step's time goes.")] = False,
    layers: Annotated[int | None, typer.Option(help="Cut the models to so many layers.  [default: all]")] = None,
    memory: Annotated[
        float | None,
        typer.Option(
            min=0.05,
            max=1,
            help="Share of a GPU that an engine takes, such as a trainer beside it leaves.  [default: vLLM's own]",
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="Where every sample goes; written after each engine.")] = None,
) -> None:
    """Generate with random weights of true shapes in real vLLM engines.

    BF16 weights have the BF16 cache alone, as what the others are compared with, unless no other scheme is chosen.

    Exit status: 0; 1 if an engine fails; 2 for wrong use.
    """
    chosen = [SHORT[name] for name in choices("--models", models, tuple(SHORT))]
    contexts = contexts_of(context)
    every = LONG if contexts else tuple(generation.SCHEMES)
    wanted = choices("--schemes", schemes or ",".join(every), tuple(generation.SCHEMES))
    rollouts = Rollouts(batches_of(batch), prompt, answer, logprobs, trace, contexts, memory)
    choices("--device", device, ("cuda", "cpu"))
    if trace and device == "cpu":
        raise typer.BadParameter("only a GPU's steps can be traced", param_hint="--trace")
    if trace and answer < generation.TRACED_ANSWER:
        raise typer.BadParameter(f"a trace needs {generation.TRACED_ANSWER} tokens or more", param_hint="--answer")
    kept = choices("--kv-cache", kv_cache, tuple(CACHES)) if contexts else ["auto"]
    if device == "cpu" and (lacking := [cache for cache in kept if cache not in ON_CPUS]):
        raise typer.BadParameter(f"{lacking[0]}: vLLM's attention for CPUs has none", param_hint="--kv-cache")
    engines = engines_of(wanted, kept)
    tasks = [
        Task(
            "decoding" if contexts else "generation",
            model,
            device,
            layers,
            variant=scheme,
            rollouts=replace(rollouts, trace=trace and not turn),
            cache=cache,
        )
        for model in chosen
        for turn in range(repeats)
        for scheme, cache in rotated(engines, turn)
    ]
    for task in tasks if contexts else ():
        check_lengths(task)
    report = decoding_report if contexts else rollout_report

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            report.write_json(out, device, outcomes)

    outcomes = in_turn(tasks, SECONDS, write)
    report.show(outcomes, console())
    raise typer.Exit(bool(rollout_report.faults_of(outcomes)))


def engines_of(schemes: list[str], caches: list[str]) -> list[tuple[str, str]]:
    """Schemes and their caches: BF16 weights have the BF16 cache, and others with them where they are alone."""
    base = [("bf16", "auto")] if "bf16" in schemes else []
    others = [scheme for scheme in schemes if scheme != "bf16"] or ["bf16"]
    ours = ("bf16", "int8-ours")  # vLLM's own schemes have vLLM's own caches
    pairs = base + [(scheme, cache) for scheme in others for cache in caches if scheme in ours or cache not in OURS]
    return list(dict.fromkeys(pairs))


def check_lengths(task: Task) -> None:
    """Refuse a context that the model has no positions for."""
    try:
        for context, batch in decoding.pairs(task):
            decoding.lengths(task, context, batch)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from None


def contexts_of(said: str, option: str = "--context") -> tuple[int, ...]:
    """Numbers of tokens with commas between them, with k for 1,024."""
    found = []
    for word in (word.strip().lower() for word in said.split(",") if word.strip()):
        number = word.removesuffix("k")
        tokens = int(number) * (1024 if word.endswith("k") else 1) if number.isdigit() else 0
        if tokens < 2:
            raise typer.BadParameter(f"{said!r}: give numbers of tokens, such as 1k,8k,30k", param_hint=option)
        found.append(tokens)
    return tuple(dict.fromkeys(found))


def batches_of(said: str, option: str = "--batch") -> tuple[int, ...]:
    """Numbers with commas between them, each 1 or more."""
    words = [word.strip() for word in said.split(",") if word.strip()]
    if not words or not all(word.isdigit() and int(word) for word in words):
        raise typer.BadParameter(f"{said!r}: give numbers of sequences, such as 64,256", param_hint=option)
    return tuple(dict.fromkeys(int(word) for word in words))


if __name__ == "__main__":
    app()
