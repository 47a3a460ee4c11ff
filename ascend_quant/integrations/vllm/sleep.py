"""Sleep mode: notifies the refit when the memory of its parameters is released and restored.

During sleep their addresses are unmapped, and a kernel that accesses them crashes the process. Level 1 restores the
bytes, level 2 does not. CPU workers ignore sleep in methods of their own, which stay as they are.
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
    """Wrap a worker's `sleep`: the refit is told, and a sleep level deeper than `levels` is refused."""

    def make(sleep: Callable) -> Callable:
        def sleep_and_report(self, level: int = 1) -> None:
            refit = refit_of_worker(self)
            if refit is not None and level > levels:
                raise RefitError(
                    f"sleep level {level}: this engine would lose more than its weights; use level {levels}"
                )
            if refit is not None:
                refit.falls_asleep(level)
            sleep(self, level)
            if refit is not None:
                refit.slept(level)

        return sleep_and_report

    return make


def reporting_wake_up(wake_up: Callable) -> Callable:
    """Wrap a worker's `wake_up`: the refit is told which memory is back; weights sleep on without their tag."""

    def wake_up_and_report(self, tags: list[str] | None = None) -> None:
        with _weights_asleep(self) if tags is not None and "weights" not in tags else nullcontext():
            wake_up(self, tags)
        if (refit := refit_of_worker(self)) is not None:
            refit.woke(tags)
            refit.cache_woke()

    return wake_up_and_report


@contextmanager
def _weights_asleep(worker: Any) -> Generator[None]:
    """Let vLLM wake up the cache alone, and leave the memory of the weights as it is.

    vLLM (0.23 to 0.28) then puts back the buffers that it saved at a level 2 sleep, and sets the scales of a quantized
    cache to 1. If the weights still sleep, a GPU has unmapped the memory of both, and an access ends the process. The
    buffers, scales among them, come with the weights: with all bytes (level 1), or as saved.
    """
    kept = getattr(worker, "_sleep_saved_buffers", None)
    refit, runner = refit_of_worker(worker), worker.model_runner
    resets = refit is not None and refit.weights_sleep and hasattr(runner, "init_fp8_kv_scales")
    if kept:
        worker._sleep_saved_buffers = {}
    if resets:
        runner.init_fp8_kv_scales = lambda: _clear(runner)
    try:
        yield
    finally:
        if kept:
            worker._sleep_saved_buffers = kept
        if resets:
            del runner.init_fp8_kv_scales


def _clear(runner: Any) -> None:
    """Zero the KV cache after a wake-up, the other half of vLLM's `init_fp8_kv_scales`: no page keeps old memory."""
    if runner.cache_config.cache_dtype != "auto":
        for cache in runner.kv_caches:
            if cache is not None:  # vLLM's own loop looks, too
                cache.zero_()
