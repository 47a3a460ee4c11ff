"""./run.sh bench rollout: how fast engines generate, by scheme; with --context: decode steps, by KV cache too."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console

from benchmarks import generation
from benchmarks.generation import CACHES, OUR_CACHES, SCHEMES
from benchmarks.models import SHORT
from benchmarks.report import Outcome, console, faults_of, show_faults, table_of, write_run
from benchmarks.tasks import Rollouts, Task, check_layers, choices, in_turn, numbers
from benchmarks.timing import rotated

SECONDS = 900  # of one engine
PLAIN = ("bf16", "auto")  # scheme and cache that the others are compared with
LONG = ("bf16", "int8-ours")  # schemes with --context, unless others are chosen
ON_CPUS = ("auto", "fp8", "fp8-vllm")  # vLLM's attention there has no int8 cache

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    models: Annotated[str, typer.Option(help=f"Comma-separated models: {', '.join(SHORT)}.")] = "7b,32b,30b-a3b",
    schemes: Annotated[
        str,
        typer.Option(
            help=f"Comma-separated schemes: {', '.join(SCHEMES)}.  [default: all; with --context {', '.join(LONG)}]"
        ),
    ] = "",
    batch: Annotated[str, typer.Option(help="Comma-separated batch sizes.")] = "64,256",
    prompt: Annotated[int, typer.Option(min=1, help="Tokens per prompt.")] = 256,
    answer: Annotated[int, typer.Option(min=2, help="Tokens per answer.")] = 512,
    context: Annotated[
        str, typer.Option(help="Decode at these comma-separated mean lengths (1k,8k,30k), instead of --prompt.")
    ] = "",
    kv_cache: Annotated[
        str, typer.Option(help=f"With --context: comma-separated KV caches for quantized weights: {', '.join(CACHES)}.")
    ] = "auto,int8,fp8",
    repeats: Annotated[int, typer.Option(min=1, help="Engines per scheme, in rotated order.")] = 2,
    layers: Annotated[int | None, typer.Option(help="Use only this many layers.  [default: all]")] = None,
    memory: Annotated[
        float | None,
        typer.Option(min=0.05, max=1, help="Fraction of a GPU's memory that an engine uses.  [default: vLLM's own]"),
    ] = None,
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    out: Annotated[Path | None, typer.Option(help="File for all samples; written after each engine.")] = None,
) -> None:
    """Generate with random weights of true shapes in real vLLM engines.

    BF16 weights have the BF16 cache alone, as what the others are compared with, unless no other scheme is chosen.

    Exit status: 0; 1 if an engine fails; 2 for wrong use.
    """
    choices("--device", device, ("cuda", "cpu"))
    contexts = numbers("--context", context, least=2) if context else ()
    wanted = choices("--schemes", schemes or ",".join(LONG if contexts else SCHEMES), tuple(SCHEMES))
    kept = choices("--kv-cache", kv_cache, tuple(CACHES)) if contexts else ["auto"]
    if device == "cpu" and (lacking := [cache for cache in kept if cache not in ON_CPUS]):
        raise typer.BadParameter(f"{lacking[0]}: vLLM's attention for CPUs has none", param_hint="--kv-cache")
    rollouts = Rollouts(numbers("--batch", batch), prompt, answer, contexts, memory)
    chosen = [SHORT[name] for name in choices("--models", models, tuple(SHORT))]
    for model in chosen:
        check_layers(model, layers)
    tasks = [
        Task("generation", model, device, layers, scheme=scheme, rollouts=rollouts, cache=cache)
        for model in chosen
        for turn in range(repeats)
        for scheme, cache in rotated(engines_of(wanted, kept), turn)
    ]
    for task in tasks:
        check_lengths(task)

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            rows = [asdict(row) | {"rate": row.rate} for row in rows_of(outcomes)]
            write_run(out, "benchmarks.rollout", device, {"rows": rows}, outcomes)

    outcomes = in_turn(tasks, SECONDS, write)
    show(outcomes, console())
    raise typer.Exit(bool(faults_of(outcomes)))


def engines_of(schemes: Sequence[str], caches: Sequence[str]) -> list[tuple[str, str]]:
    """Pair schemes with KV caches: BF16 weights have the BF16 cache, and others with them where they are alone."""
    base = [PLAIN] if "bf16" in schemes else []
    others = [scheme for scheme in schemes if scheme != "bf16"] or ["bf16"]
    pairs = base + [
        (scheme, cache) for scheme in others for cache in caches if scheme in LONG or cache not in OUR_CACHES
    ]
    return list(dict.fromkeys(pairs))  # vLLM's own schemes have vLLM's own caches


def check_lengths(task: Task) -> None:
    """Refuse a context that the model has no positions for."""
    try:
        for context, batch in generation.pairs(task):
            generation.lengths(task, context, batch)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--context") from None


@dataclass(frozen=True)
class Row:
    """Row of one scheme with one KV cache, at one batch.

    Attributes:
        context: tokens in the mean; None of whole answers.
        rates: tokens a second, one a round of each engine; none where the batch does not fit.
        ratio: of the medians, to BF16 weights and cache in the same run; None without these.
        fits: sequences of that context, the least of the engines; None of whole answers.
    """

    model: str
    context: int | None
    batch: int
    scheme: str
    cache: str
    rates: tuple[float, ...]
    ratio: float | None
    fits: int | None

    @property
    def rate(self) -> float | None:
        """Median of the tokens a second."""
        return median(self.rates) if self.rates else None


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return rows model by model, context by context, batch by batch; within them as the engines came."""
    found: dict[tuple, list[dict]] = {}
    for outcome in outcomes:
        for one in (outcome.result or {}).get("measured", ()):
            key = outcome.task.model, one.get("context"), one["batch"], outcome.task.scheme, outcome.task.cache
            found.setdefault(key, []).append(one)
    rates = {key: tuple(rate for one in ones for rate in one["rates"]) for key, ones in found.items()}
    rows = []
    for key in sorted(found, key=lambda key: (key[0], key[1] or 0, key[2])):
        base = rates.get((*key[:3], *PLAIN))
        ratio = median(rates[key]) / median(base) if rates[key] and base else None
        fits = min((one["fits"] for one in found[key] if "fits" in one), default=None)
        rows.append(Row(*key, rates[key], ratio, fits))
    return rows


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """Print tokens a second beside those of BF16, and last what is wrong."""
    words = ("model", "weights", "cache")
    figures = ("context", "batch", "tokens/s", "low - high", "times BF16", "sequences that fit")
    table = table_of("Rollouts: medians", words, figures)
    for row in rows_of(outcomes):
        rate, spread = (
            ("-", "-") if not row.rates else (f"{row.rate:.0f}", f"{min(row.rates):.0f} - {max(row.rates):.0f}")
        )
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        context, fits = ("-" if one is None else str(one) for one in (row.context, row.fits))
        table.add_row(row.model, row.scheme, row.cache, context, str(row.batch), rate, spread, ratio, fits)
    out.print(table)
    show_faults(faults_of(outcomes), out)


if __name__ == "__main__":
    app()
