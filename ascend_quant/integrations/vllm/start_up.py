"""Durations of the stages of an engine worker's start, recorded in the worker; vLLM itself only logs them."""

import time
from collections.abc import Callable

WORKERS = (
    ("vllm.v1.worker.gpu_worker", "Worker"),
    ("vllm.v1.worker.cpu_worker", "CPUWorker"),
    ("vllm_ascend.worker.worker", "NPUWorker"),
    ("vllm_ascend.worker.worker_v1", "NPUWorker"),
)
STEPS = {  # methods of a worker, after the model is built
    "determine_available_memory": "trial run",
    "initialize_from_config": "kv cache",
    "compile_or_warm_up_model": "graphs and warm-up",
}

_seconds: dict[str, float] = {}


def add(part: str, seconds: float) -> None:
    """Add seconds to a part of the start."""
    _seconds[part] = _seconds.get(part, 0.0) + seconds


def seconds_of(compilation_config: object) -> dict[str, float]:
    """Return the seconds of each part; those of torch.compile are subtracted from the part around it."""
    found, left = dict(_seconds), float(getattr(compilation_config, "compilation_time", 0.0) or 0.0)
    if left:
        found["torch.compile"] = left
    for part in ("trial run", "graphs and warm-up"):
        taken = min(left, found.get(part, 0.0))
        if taken:
            found[part], left = found[part] - taken, left - taken
    return found


def timed(part: str) -> Callable[[Callable], Callable]:
    """Wrap a method of a worker (`STEPS`): its seconds are recorded for this part."""

    def make(function: Callable) -> Callable:
        def step(*args, **kwargs):
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                add(part, time.perf_counter() - start)

        return step

    return make
