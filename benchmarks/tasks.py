"""One measurement to make, and the process that makes it: each has the device to itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.models import Model, get_model

ROOT = Path(__file__).parents[1]
SHOWN = 4000  # characters of a failed process's last words
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine core in the process that is measured
    "VLLM_LOGGING_LEVEL": "WARNING",
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

    @classmethod
    def of(cls, fields: dict) -> "Task":
        """From what `asdict` made of one."""
        rollouts = fields["rollouts"]
        return cls(**{**fields, "rollouts": rollouts and Rollouts(**rollouts)})

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
        asked, answer, log = (Path(folder) / name for name in ("task.json", "result.json", "log.txt"))
        asked.write_text(json.dumps(asdict(task)))
        command = [sys.executable, "-m", "benchmarks.child", str(asked), str(answer)]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        environment = {**ENVIRONMENT, **os.environ, "PYTHONPATH": path}
        start = time.perf_counter()
        with log.open("wb") as output:
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, env=environment, preexec_fn=os.setpgrp
            )
            ending = _wait(process, seconds)
        taken = time.perf_counter() - start
        if answer.exists():
            return Outcome(task, taken, json.loads(answer.read_text()))
        words = log.read_text(errors="replace")[-SHOWN:]
        return Outcome(task, taken, None, f"{task.title()}: {ending}; its last words:\n{words}")


def _wait(process: subprocess.Popen, seconds: float) -> str:
    """How the process ended; when this returns, it and what it started are gone."""
    try:
        return f"it ended with code {process.wait(seconds)}"
    except subprocess.TimeoutExpired:
        return f"it was stopped after {seconds:.0f} s"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
