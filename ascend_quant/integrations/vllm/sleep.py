"""Sleep mode: the refit is told when the memory of its residents goes and comes.

Asleep, their addresses are unmapped: a kernel that touches them ends the process. Level 1 brings the bytes back,
level 2 does not. CPU workers ignore sleep in methods of their own, which stay as they are.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

from ascend_quant.integrations.vllm.worker_refit import refit_of_worker
from ascend_quant.refit import RefitError

SLEEPING_WORKERS = (  # and the deepest sleep after which a refit heals them
    ("vllm.v1.worker.gpu_worker", "Worker", 2),
    ("vllm_ascend.worker.worker", "NPUWorker", 1),  # level 2 loses expert maps and other plain attributes
    ("vllm_ascend.worker.worker_v1", "NPUWorker", 1),  # 0.10: level 2 loses buffers too
)


def reporting_sleep(levels: int) -> Callable[[Callable], Callable]:
    """For a worker's `sleep`, which `levels` is the deepest of: what tells the refit, and refuses deeper sleep."""

    def make(sleep: Callable) -> Callable:
        def sleep_and_report(self, level: int = 1) -> None:
            refit = refit_of_worker(self)
            if refit is not None and level > levels:
                raise RefitError(
                    f"sleep level {level}: this engine loses more than its weights in it; use level {levels}"
                )
            if refit is not None:
                refit.falls_asleep(level)
            sleep(self, level)
            if refit is not None:
                refit.slept(level)

        return sleep_and_report

    return make


def reporting_wake_up(wake_up: Callable) -> Callable:
    """For a worker's `wake_up`."""

    def wake_up_and_report(self, tags: list[str] | None = None) -> None:
        with _without_buffers(self) if tags is not None and "weights" not in tags else nullcontext():
            wake_up(self, tags)
        if (refit := refit_of_worker(self)) is not None:
            refit.woke(tags)
            refit.cache_woke()

    return wake_up_and_report


@contextmanager
def _without_buffers(worker: Any) -> Generator[None]:
    """Keep the model's buffers of a level 2 sleep for the wake-up of the weights, in whose memory they lie.

    vLLM 0.23 puts them back whatever wakes up: the cache first, and a copy to unmapped memory ends the process.
    """
    kept = getattr(worker, "_sleep_saved_buffers", None)
    if not kept:
        yield
        return
    worker._sleep_saved_buffers = {}
    try:
        yield
    finally:
        worker._sleep_saved_buffers = kept
