"""python -m benchmarks.refit: what a refit costs, beside the alternatives, in one run."""

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from benchmarks import engine, graphs, report
from benchmarks.models import MODELS, get_model
from benchmarks.process import carry_out
from benchmarks.tasks import Outcome, Task
from launch.processes import end_as_after_ctrl_c

PARTS = ("kernels", "engine", "graphs", "ranks")
MODEL = {"cuda": "qwen2.5-7b", "cpu": "tiny"}
SECONDS = 600  # of one task
LEFT_OUT = {"cpu": ("fp8-vllm", "graphs")}  # what vLLM has for GPUs alone

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@app.command()
def main(
    device: Annotated[str, typer.Option(help="cuda or cpu.")] = "cuda",
    model: Annotated[str, typer.Option(help=f"With commas: {', '.join(MODELS)}.  [default: by device]")] = "",
    layers: Annotated[int | None, typer.Option(help="Cut the models to so many layers.  [default: all]")] = None,
    parts: Annotated[str, typer.Option(help=f"With commas: {', '.join(PARTS)}.")] = "kernels,engine",
    schemes: Annotated[str, typer.Option(help=f"Of part engine, with commas: {', '.join(engine.SCHEMES)}.")] = ",".join(
        engine.DEFAULT
    ),
    scheme: Annotated[
        str, typer.Option(help=f"Of parts graphs and ranks, with commas: {', '.join(engine.OURS)}.")
    ] = "int8",
    rounds: Annotated[int, typer.Option(min=1, help="How often each method is timed.")] = 7,
    tensor_parallel: Annotated[int, typer.Option(min=2, help="Ranks (GPUs) of part ranks.")] = 2,
    expert_parallel: Annotated[bool, typer.Option(help="Part ranks: deal experts out whole.")] = False,
    out: Annotated[Path | None, typer.Option(help="Where every sample goes; written after each step.")] = None,
) -> None:
    """Measure refits and their alternatives on the same tensors.

    Exit status: 0; 1 if bytes or answers are wrong; 2 for wrong use.
    """
    chosen = {
        "--device": choices("--device", device, tuple(MODEL))[:1],
        "--model": choices("--model", model or MODEL.get(device, ""), tuple(MODELS)),
        "--parts": choices("--parts", parts, PARTS),
        "--schemes": choices("--schemes", schemes, tuple(engine.SCHEMES)),
        "--scheme": choices("--scheme", scheme, engine.OURS),
    }
    if chosen["--parts"] != ["kernels"] and find_spec("vllm") is None:
        raise typer.BadParameter("vLLM is not installed: only --parts kernels does without", param_hint="--parts")
    shared = {"device": device, "layers": layers, "rounds": rounds}
    tasks = [
        Task(part, name, **shared, **more)
        for name in chosen["--model"]
        for part in chosen["--parts"]
        for more in _alternatives(part, device, chosen, tensor_parallel, expert_parallel)
    ]
    for name in chosen["--model"]:
        try:
            get_model(name).cut(layers)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--layers") from None

    def write(outcomes: Sequence[Outcome]) -> None:
        if out is not None:
            report.write_json(out, device, outcomes)

    outcomes = in_turn(tasks, SECONDS, write)
    report.show(outcomes, report.console())
    raise typer.Exit(bool(report.faults_of(outcomes)))


def choices(option: str, said: str, known: tuple[str, ...]) -> list[str]:
    """Words with commas between them, each of them a known one."""
    words = [word.strip() for word in said.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        wrong = f"{unknown[0]!r} is none of" if unknown else "say one of"
        raise typer.BadParameter(f"{wrong}: {', '.join(known)}", param_hint=option)
    return words


def _alternatives(
    part: str, device: str, chosen: dict[str, list[str]], ranks: int, expert_parallel: bool
) -> Iterator[dict]:
    """What a part is measured for, one process each."""
    if part in ("kernels", "engine"):
        variants = {"kernels": [""], "engine": chosen["--schemes"]}[part]
        yield from ({"variant": variant} for variant in variants if variant not in LEFT_OUT.get(device, ()))
        return
    for scheme in chosen["--scheme"]:
        if part == "ranks":
            yield {"scheme": scheme}
            yield {"scheme": scheme, "ranks": ranks, "expert_parallel": expert_parallel}
        else:
            ways = (way for way in graphs.WAYS if way not in LEFT_OUT.get(device, ()))
            yield from ({"scheme": scheme, "variant": way} for way in ways)


def in_turn(
    tasks: Sequence[Task],
    seconds: float,
    write: Callable[[Sequence[Outcome]], None],
    measure: Callable[[Task, float], Outcome] | None = None,
) -> list[Outcome]:
    """Carry out one task after the other, a line each; `write` is given what is known so far after each.

    Args:
        measure: carries out a task in so many seconds.  [default: in a process of its own, see `tasks`]
    """
    end_as_after_ctrl_c()  # else an engine that is measured would stay, with its memory
    outcomes: list[Outcome] = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    out = report.console()
    with Progress(*columns, console=out, transient=True, disable=not out.is_terminal) as progress:
        shown = progress.add_task("")
        for number, task in enumerate(tasks, 1):
            progress.update(shown, description=f"{number} of {len(tasks)}: {task.title()}")
            outcome = (measure or carry_out)(task, seconds)
            outcomes.append(outcome)
            ending = "failed" if outcome.result is None else "done"
            out.print(f"{number} of {len(tasks)}: {task.title()}: {ending} in {outcome.seconds:.0f} s")
            write(outcomes)
    return outcomes


if __name__ == "__main__":
    app()
