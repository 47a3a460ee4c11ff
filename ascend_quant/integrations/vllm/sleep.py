"""Sleep mode: notifies the refit when the memory of its parameters is released and restored.

During sleep their addresses are unmapped, and a kernel that accesses them crashes the process. Level 1 restores the
bytes, level 2 does not. CPU workers ignore sleep, in their own methods, which are not replaced.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from typing import Any

from ascend_quant.integrations.vllm.worker_refit import refit_of_worker
from ascend_quant.refit import RefitError

SLEEPING_WORKERS = (  # and the deepest sleep level from which a refit recovers them
    ("vllm.v1.worker.gpu_worker", "Worker", 2),
    ("vllm_ascend.worker.worker", "NPUWorker", 1),  # level 2 loses expert maps and other plain attributes
    ("vllm_ascend.worker.worker_v1", "NPUWorker", 1),  # 0.10: level 2 also loses buffers
)


def reporting_sleep(levels: int) -> Callable[[Callable], Callable]:
    """Wrap a worker's `sleep`: the refit is notified, and a level deeper than `levels` is refused."""

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
    """Wrap a worker's `wake_up`: the refit is notified of the restored memory; weights need their tag."""

    def wake_up_and_report(self, tags: list[str] | None = None) -> None:
        with _weights_asleep(self) if tags is not None and "weights" not in tags else nullcontext():
            wake_up(self, tags)
        if (refit := refit_of_worker(self)) is not None:
            refit.woke(tags)
            refit.cache_woke()

    return wake_up_and_report


@contextmanager
def _weights_asleep(worker: Any) -> Generator[None]:
    """Make vLLM wake up only the cache, without touching the memory of the weights.

    vLLM (0.23 to 0.28) then restores the buffers that it saved at level 2, and sets the scales of a quantized cache to
    1. If the weights are still asleep, the memory of both is unmapped on a GPU, and an access ends the process. The
    buffers, including the scales, are restored with the weights instead.
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
    """Zero the KV cache after a wake-up, as vLLM's `init_fp8_kv_scales` does, so that no page keeps old memory."""
    if runner.cache_config.cache_dtype != "auto":
        for cache in runner.kv_caches:
            if cache is not None:  # vLLM's own loop checks this, too
                cache.zero_()
