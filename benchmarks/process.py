"""A task's process (see child.py), which has the device to itself: started, waited for, ended with what it started."""

import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import time
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path

from benchmarks import child
from benchmarks.tasks import Outcome, Task

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
    """How the process ended; it and what it started are gone afterwards, when Ctrl-C ends the waiting too."""
    try:
        process.join(seconds)
        if process.exitcode is None:
            return f"it was stopped after {seconds:.0f} s"
        return f"it ended with code {process.exitcode}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.kill()  # where it has no group of its own yet
        process.join()
