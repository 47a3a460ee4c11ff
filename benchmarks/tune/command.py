"""`python -m benchmarks.tune`: time the int8 kernels that this GPU supports, and save the fastest."""

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ascend_quant.files.whole_file import why_no_file
from ascend_quant.terminal.exits import DONE, FAILED, NOT_REACHED, WRONG_USE, fail

if TYPE_CHECKING:
    from ascend_quant.terminal.progress import Bars
    from benchmarks.tune.search import Job, Measured

BATCHES = "16,32,64,128,256,512,2048,8192"
COMPILING = 0.4  # maximum fraction of the time spent compiling


def tune(
    shape: Annotated[
        list[str] | None,
        typer.Option(help="Layer shape on one GPU: N,K of a linear layer, or EXPERTS,WIDTH,HIDDEN,TOP. Repeatable."),
    ] = None,
    batch: Annotated[
        str, typer.Option(help="Token counts to tune; other counts use the next larger one's kernel.")
    ] = BATCHES,
    seconds: Annotated[
        float, typer.Option(help="Time limit in total; the next run continues where this one stopped.")
    ] = 600,
    again: Annotated[bool, typer.Option("--again", help="Re-tune shapes that the file already has.")] = False,
    out: Annotated[Path | None, typer.Option(help="Output file; engines read the default one, in ~/.cache.")] = None,
) -> None:
    """Benchmark the available int8 kernels for given layer shapes on this NVIDIA GPU, and save the fastest.

    Engines started later use them. Without --shape, the layers of Qwen2.5-7B, 32B and Qwen3-30B-A3B are tuned.

    Exit status: 0 on success; 1 if no kernel computed a product correctly; 2 for wrong usage or without an NVIDIA GPU;
    3 if time ran out (results are kept, and the next run continues).
    """
    import torch

    from ascend_quant.integrations.vllm.layers import register_products
    from ascend_quant.kernels import tuned

    if not torch.cuda.is_available():
        fail("error: tune needs an NVIDIA GPU, and none was found", WRONG_USE)
    if out is not None and (said := why_no_file(out, in_new_folders=True)):
        raise typer.BadParameter(said, param_hint="--out")
    jobs = wanted(shape or [], batch)
    file = out or tuned.user_file(tuned.gpu_name())
    try:
        known = {} if again else tuned.load(file)
    except tuned.BadTable as error:
        fail(f"error: {error}", WRONG_USE)
    new = [job for job in jobs if job.rows not in known.get(job.kind, {}).get(job.shape, {})]
    register_products("cuda")
    found = list(_measured(new, seconds, lambda one: _keep(one, file)))
    _show(found, file, len(jobs) - len(new), len(new) - len(found))
    if any(one.choice is None for one in found):
        raise typer.Exit(FAILED)
    raise typer.Exit(NOT_REACHED if len(found) < len(new) else DONE)


def wanted(shapes: list[str], batch: str) -> "list[Job]":
    """Return the products named by the options; those of all known models without a shape.

    Raises:
        typer.BadParameter: an option is not a number.
    """
    from ascend_quant.kernels.tuned import KINDS
    from benchmarks.tune.search import Job, known_shapes

    rows = [_numbers(part, "--batch")[0] for part in batch.split(",")]
    pairs = [] if shapes else known_shapes()
    for text in shapes:
        numbers = _numbers(text, "--shape")
        kind = next((kind for kind, what in KINDS.items() if len(what.axes) == len(numbers)), None)
        if kind is None:
            forms = " or ".join(",".join(what.axes) for what in KINDS.values())
            raise typer.BadParameter(f"{text!r}: expected positive integers: {forms}", param_hint="--shape")
        pairs.append((kind, numbers))
    return [Job(kind, numbers, count) for kind, numbers in dict.fromkeys(pairs) for count in rows]


def _numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[1-9][0-9]{0,8}", part) for part in parts):
        raise typer.BadParameter(f"{text!r:.80}: expected positive integers separated by commas", param_hint=option)
    return tuple(map(int, parts))


def _measured(jobs: "list[Job]", limit: float, keep: Callable) -> "Iterator[Measured]":
    """Yield the results measured within this many seconds; each is saved at once."""
    from rich.console import Console
    from rich.progress import MofNCompleteColumn

    from ascend_quant.terminal.progress import Bars
    from benchmarks.tune import search as tuning

    if not jobs:
        return
    begin = time.monotonic()
    columns = (*Bars.get_default_columns(), MofNCompleteColumn())
    with Bars(*columns, console=Console(stderr=True), transient=True) as bar:
        _compile(tuning.to_compile(jobs), COMPILING * limit, bar)
        task = bar.add_task("timing", total=len(jobs))
        for number, job in enumerate(jobs):
            left = begin + limit - time.monotonic()
            if left <= 0:
                return
            one = tuning.measure(job, time.monotonic() + 2 * left / (len(jobs) - number))
            keep(one)
            bar.advance(task)
            yield one


def _compile(kernels: list, limit: float, bar: "Bars") -> None:
    from benchmarks.tune import search as tuning

    task = bar.add_task("compiling", total=len(kernels))
    try:
        for _ in tuning.warm(kernels, limit):  # what fails here fails again when it is timed, and is reported there
            bar.advance(task)
    except TimeoutError:
        bar.console.print("some kernels are not compiled yet; they are compiled while timing, which then takes longer")


def _keep(one: "Measured", file: Path) -> None:
    from benchmarks.tune.table import save

    if one.choice is not None:
        save(file, {one.job.kind: {one.job.shape: {one.job.rows: one.choice}}})


def _show(found: "list[Measured]", file: Path, known: int, left: int) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    table = Table(
        Column("product", no_wrap=True), "rows", "vLLM, µs", "chosen, µs", "of what is possible", "chosen", "tried"
    )
    for one in found:
        name = f"{one.job.kind} {'x'.join(map(str, one.job.shape))}"
        part = f"{one.floor / one.seconds:.0%}" if one.floor and one.seconds else ""
        chosen = "none" if one.choice is None else _said(one.choice)
        times = ["" if seconds is None else f"{seconds * 1e6:.1f}" for seconds in (one.before, one.seconds)]
        table.add_row(name, str(one.job.rows), *times, part, chosen, str(one.tried))
        if one.choice is None:
            typer.echo(f"error: {name}: no kernel gives the right result: {'; '.join(one.problems[:3])}", err=True)
    if found:
        Console().print(table)
    more = f"; {known} were known (--again)" if known else ""
    late = f"; {left} not reached within the time limit: run again" if left else ""
    typer.echo(f"{len(found)} measured{more}{late}; {file}")


def _said(choice: dict) -> str:
    fields = " ".join(f"{name}={int(value)}" for name, value in choice.items() if name != "by" and value)
    return f"{choice['by']} {fields}".strip()
