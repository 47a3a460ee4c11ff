"""One measurement to make, and the process that makes it: each has the device to itself."""

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import time
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import child
from benchmarks.models import Model, get_model

SHOWN = 4000  # characters of a failed process's last words
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
    """What part generation generates.

    Attributes:
        batches: sequences at a time.
        prompt, answer: tokens of each.
        logprobs: whether the log-probability of each sampled token is returned.
        trace: look into a few decode steps too.
    """

    batches: tuple[int, ...]
    prompt: int = 256
    answer: int = 512
    logprobs: bool = False
    trace: bool = False


@dataclass(frozen=True)
class Task:
    """What one process measures.

    Attributes:
        part: the module that does it: kernels, engine, graphs, ranks or generation.
        layers: how many of the model's; None for all.
        variant: which of the part's alternatives: a scheme, or a way to run the model.
        scheme: of the engines of parts graphs and ranks.
        rollouts: of part generation.
    """

    part: str
    model: str
    device: str
    layers: int | None = None
    rounds: int = 5
    variant: str = ""
    ranks: int = 1
    expert_parallel: bool = False
    scheme: str = "int8"
    rollouts: Rollouts | None = None

    def cut_model(self) -> Model:
        """The model with as many layers as asked for."""
        return get_model(self.model).cut(self.layers)

    def title(self) -> str:
        """For a line of progress."""
        ranks = f"{self.ranks} ranks" if self.ranks > 1 else ""
        dealt = "with experts dealt out" if self.expert_parallel else ""
        scheme = self.scheme if self.part in ("graphs", "ranks") else ""
        return " ".join(word for word in (self.model, self.part, scheme, self.variant, ranks, dealt) if word)


@dataclass(frozen=True)
class Outcome:
    """What became of a task.

    Attributes:
        result: what the part's `run` returned; None if it failed.
        error: the process's last words, if it failed.
    """

    task: Task
    seconds: float
    result: dict | None
    error: str = ""


def carry_out(task: Task, seconds: float) -> Outcome:
    """Run a task in a process of its own, which has that many seconds."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        answer, log = (Path(folder) / name for name in ("result.json", "log.txt"))
        start = time.perf_counter()
        process = _forks().Process(target=child.main, args=(task, answer, log))
        process.start()
        ending = _wait(process, seconds)
        taken = time.perf_counter() - start
        if answer.exists():
            return Outcome(task, taken, json.loads(answer.read_text()))
        words = log.read_text(errors="replace")[-SHOWN:] if log.exists() else ""
        return Outcome(task, taken, None, f"{task.title()}: {ending}; its last words:\n{words}")


@cache
def _forks() -> BaseContext:
    """Processes forked from one that has imported what all of them need: imports alone take a GPU machine 20 s."""
    before = dict(os.environ)
    forks = multiprocessing.get_context("forkserver")
    forks.set_forkserver_preload(["benchmarks.preload"])
    os.environ.update({**ENVIRONMENT, **before})
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return forks


def _wait(process: BaseProcess, seconds: float) -> str:
    """How the process ended; when this returns, it and what it started are gone."""
    process.join(seconds)
    ending = f"it was stopped after {seconds:.0f} s"
    if process.exitcode is not None:
        ending = f"it ended with code {process.exitcode}"
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.join()
    return ending
