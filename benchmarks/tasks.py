"""Measurements to make: chosen on a command line, each carried out in a process of its own, one after the other.

The process has the device to itself; it imports `benchmarks.PART` and writes what its `run` returns to a file.
"""

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from ascend_quant.files.whole_file import write_whole
from ascend_quant.processes.tree import end_as_after_ctrl_c
from benchmarks.models import Model, get_model
from benchmarks.report import Outcome, console
from launch import with_root

SHOWN = 4000  # characters of a failed process's last words
TASK, ANSWER, LOG = "task.pickle", "result.json", "log.txt"
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in the process that is measured
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS": "0",  # captures all graphs once more, to know their size
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}


@dataclass(frozen=True)
class Rollouts:
    """Parameters of what part generation generates.

    Attributes:
        batches: sequences at a time.
        prompt, answer: tokens of each.
        contexts: tokens of sequences whose decode steps are timed instead.
        memory: share of a GPU's memory that an engine takes; None for vLLM's own.
    """

    batches: tuple[int, ...]
    prompt: int = 256
    answer: int = 512
    contexts: tuple[int, ...] = ()
    memory: float | None = None


@dataclass(frozen=True)
class Task:
    """Parameters of what one process measures.

    Attributes:
        part: the module that does it: kernels, engine or generation.
        layers: how many of the model's; None for all.
        scheme: of the engine.
        ranks: GPUs of part engine; `expert_parallel`: each has whole experts.
        rollouts, cache: of part generation; what keys and values are kept in.
    """

    part: str
    model: str
    device: str
    layers: int | None = None
    rounds: int = 5
    scheme: str = ""
    ranks: int = 1
    expert_parallel: bool = False
    rollouts: Rollouts | None = None
    cache: str = "auto"

    def cut_model(self) -> Model:
        """Return the model with as many layers as asked for."""
        return get_model(self.model).cut(self.layers)

    def title(self) -> str:
        """Return the task's name for a line of progress."""
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else ""
        dealt = "with experts dealt out" if self.expert_parallel else ""
        cache = f"with {self.cache} cache" if self.cache != "auto" else ""
        return " ".join(word for word in (self.model, self.part, self.scheme, cache, ranks, dealt) if word)


def choices(option: str, said: str, known: Sequence[str]) -> list[str]:
    """Parse words with commas between them, each of them a known one."""
    words = [word.strip() for word in said.split(",") if word.strip()]
    unknown = [word for word in words if word not in known]
    if unknown or not words:
        wrong = f"{unknown[0]!r} is none of" if unknown else "say one of"
        raise typer.BadParameter(f"{wrong}: {', '.join(known)}", param_hint=option)
    return list(dict.fromkeys(words))


def numbers(option: str, said: str, least: int = 1) -> tuple[int, ...]:
    """Parse whole numbers with commas between them, each `least` or more; 8k is 8,192."""
    found = []
    for word in (word.strip().lower() for word in said.split(",") if word.strip()):
        digits = word.removesuffix("k")
        number = int(digits) * (1024 if word.endswith("k") else 1) if digits.isdecimal() else -1
        if number < least:
            raise typer.BadParameter(f"{said!r}: give numbers from {least} on, such as 64,8k", param_hint=option)
        found.append(number)
    if not found:
        raise typer.BadParameter("give at least one number", param_hint=option)
    return tuple(dict.fromkeys(found))


def check_layers(model: str, layers: int | None) -> None:
    """Raise BadParameter unless the model can be cut to so many."""
    try:
        get_model(model).cut(layers)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--layers") from None


def in_turn(
    tasks: Sequence,
    seconds: float,
    write: Callable[[Sequence[Outcome]], None],
    measure: Callable[..., Outcome] | None = None,
) -> list[Outcome]:
    """Carry out one task after the other, a line each; `write` is given what is known so far after each.

    Args:
        measure: carries out a task in so many seconds.  [default: `carry_out`]
    """
    end_as_after_ctrl_c()  # else an engine that is measured would stay, with its memory
    outcomes: list[Outcome] = []
    columns = SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn()
    out = console()
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


def carry_out(task: Task, seconds: float) -> Outcome:
    """Run a task in a process of its own, which has that many seconds; it and what it started are gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as name:
        folder, start = Path(name), time.perf_counter()
        (folder / TASK).write_bytes(pickle.dumps(task))
        command = [sys.executable, "-m", "benchmarks.tasks", name]
        variables = ENVIRONMENT | os.environ | {"PYTHONPATH": with_root(os.environ)}
        with (folder / LOG).open("wb") as log:
            process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, start_new_session=True)
        try:
            ending = f"it ended with code {process.wait(seconds)}"
        except subprocess.TimeoutExpired:
            ending = f"it was stopped after {seconds:.0f} s"
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        taken = time.perf_counter() - start
        if (answer := folder / ANSWER).exists():
            return Outcome(task, taken, json.loads(answer.read_text()))
        words = (folder / LOG).read_text(errors="replace")[-SHOWN:]
        return Outcome(task, taken, None, f"{task.title()}: {ending}; its last words:\n{words}")


def main(folder: Path) -> None:
    """Run the task in this process; the result is written whole or not at all."""
    task = pickle.loads((folder / TASK).read_bytes())
    write_whole(folder / ANSWER, json.dumps(import_module(f"benchmarks.{task.part}").run(task)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
