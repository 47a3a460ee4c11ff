"""./run.sh bench refit: what a refit costs, beside the alternatives, in one run."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape

from benchmarks import engine
from benchmarks.models import MODELS
from benchmarks.report import Outcome, console, faults_of, show_faults, table_of, write_run
from benchmarks.tasks import Task, check_layers, choices, in_turn
from benchmarks.timing import summary

PARTS = ("kernels", "engine")
MODEL = {"cuda": "qwen2.5-7b", "cpu": "tiny"}
SECONDS = 600  # of one task
MIB = 1 << 20
WORDS = {
    "bare": "load_weights",
    "session": "512 MiB buckets",
    "reload": "reload_weights",
    "stacked": "load_weights, stacked experts",
}

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="Device: cuda or cpu.")] = "cuda",
    model: Annotated[
        str, typer.Option(help=f"Comma-separated models: {', '.join(MODELS)}.  [default: depends on the device]")
    ] = "",
    layers: Annotated[int | None, typer.Option(help="Use only this many layers.  [default: all]")] = None,
    parts: Annotated[str, typer.Option(help=f"Comma-separated parts: {', '.join(PARTS)}.")] = "kernels,engine",
    schemes: Annotated[
        str, typer.Option(help=f"Comma-separated schemes of the part engine: {', '.join(engine.SCHEMES)}.")
    ] = "bf16,fp8-vllm,int8",
    rounds: Annotated[int, typer.Option(min=1, help="Number of times that each method is timed.")] = 7,
    ranks: Annotated[int, typer.Option(min=1, help="Number of GPUs per engine.")] = 1,
    expert_parallel: Annotated[bool, typer.Option(help="Use expert parallelism.")] = False,
    out: Annotated[Path | None, typer.Option(help="File for all samples; written after each step.")] = None,
) -> None:
    """Measure refits and their alternatives on the same tensors.

    Exit status: 0; 1 if bytes are wrong or a part fails; 2 for wrong use.
    """
    choices("--device", device, tuple(MODEL))
    models = choices("--model", model or MODEL[device], tuple(MODELS))
    chosen = choices("--parts", parts, PARTS)
    if "engine" in chosen and find_spec("vllm") is None:
        raise typer.BadParameter("vLLM is not installed: only --parts kernels does without", param_hint="--parts")
    wanted = choices("--schemes", schemes, tuple(engine.SCHEMES))
    if device == "cpu":  # vLLM has its fp8 for GPUs alone
        wanted = [scheme for scheme in wanted if scheme != "fp8-vllm"]
    for name in models:
        check_layers(name, layers)
    of_engine = {"ranks": ranks, "expert_parallel": expert_parallel}
    alternatives = {"kernels": [{}], "engine": [{"scheme": scheme, **of_engine} for scheme in wanted]}
    tasks = [
        Task(part, name, device, layers, rounds, **more)
        for name in models
        for part in chosen
        for more in alternatives[part]
    ]

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            rows = [{**asdict(row), "bytes_per_second": row.rate} for row in rows_of(outcomes)]
            write_run(out, "benchmarks.refit", device, {"rows": rows}, outcomes)

    outcomes = in_turn(tasks, SECONDS, write)
    show(outcomes, console())
    raise typer.Exit(bool(faults_of(outcomes)))


@dataclass(frozen=True)
class Row:
    """Figures of one method.

    Attributes:
        ms, host_ms: median and spread (see `timing`).
        moved: bytes that it must at least read and write.
        extra_bytes: device memory that it took for itself, at most.
    """

    part: str
    model: str
    method: str
    ms: dict
    host_ms: dict
    moved: int
    extra_bytes: int | None = None

    @property
    def rate(self) -> float:
        """Throughput in bytes a second, by the median."""
        return self.moved / self.ms["median"] * 1e3


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """Return all rows, in the order of the tasks."""
    makers = {"kernels": _kernels, "engine": _engine}
    return [row for one in outcomes if one.result is not None for row in makers[one.task.part](one)]


def copy_rate(rows: Sequence[Row]) -> float | None:
    """Return the bytes a second of a plain device copy, read and written ones counted; None if it was not measured."""
    return max((row.rate for row in rows if row.method == "copy"), default=None)


def _kernels(outcome: Outcome) -> Iterator[Row]:
    result = outcome.result
    for method, samples in result["samples"].items():
        moved = result["copied"] if method == "copy" else result["bytes"]
        yield Row("kernels", outcome.task.model, method, summary(samples["ms"]), summary(samples["host_ms"]), moved)


def _engine(outcome: Outcome) -> Iterator[Row]:
    result, task = outcome.result, outcome.task
    ranks = f", {task.ranks} ranks" if task.ranks > 1 else ""
    found = {WORDS[way]: samples for way, samples in result["samples"].items()}
    if task.scheme in engine.OURS:
        found |= {
            f"{WORDS[way]}, first": [result["first"][way]] for way in ("bare", "stacked") if way in result["first"]
        }
    for words, samples in found.items():
        ms, host = ([sample[key] for sample in samples] for key in ("ms", "host_ms"))
        extra = [sample["extra_bytes"] for sample in samples if sample["extra_bytes"] is not None]
        method = f"{task.scheme}{ranks}: {words}"
        yield Row("engine", task.model, method, summary(ms), summary(host), result["moved"], max(extra, default=None))


def show(outcomes: Sequence[Outcome], out: Console) -> None:
    """Print the figures, what engines refused, and last what is wrong."""
    rows = rows_of(outcomes)
    copied = copy_rate(rows)
    figures = ("ms", "low - high", "host ms", "GB/s", "of a copy", "extra MiB")
    table = table_of("Refits: medians of several rounds", ("model", "method"), figures)
    for row in rows:
        spread = f"{row.ms['low']:.2f} - {row.ms['high']:.2f}"
        ratio = f"{row.rate / copied:.3f}" if copied else "-"
        extra = "-" if row.extra_bytes is None else f"{row.extra_bytes / MIB:.1f}"
        times = f"{row.ms['median']:.2f}", spread, f"{row.host_ms['median']:.2f}"
        table.add_row(row.model, row.method, *times, f"{row.rate / 1e9:.0f}", ratio, extra)
    out.print(table)
    for outcome in outcomes:
        for way, why in (outcome.result or {}).get("refused", {}).items():
            out.print(f"{outcome.task.title()}: {way} is refused: {escape(why)}", soft_wrap=True)
    show_faults(faults_of(outcomes), out)


if __name__ == "__main__":
    app()
