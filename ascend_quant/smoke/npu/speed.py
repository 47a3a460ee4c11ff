"""Probes of a refit's speed on an NPU, compared with a plain copy, and per operator call."""

import tempfile
import time
import warnings
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from ascend_quant.kernels import npu
from ascend_quant.kernels.npu.refit import codes as npu_codes
from ascend_quant.kernels.writes import Int8Write, Job
from ascend_quant.smoke.kernels import kernels_of, profiler_into
from ascend_quant.smoke.npu import data
from ascend_quant.smoke.probes import On, Seen, need, probe

ROUNDS, ROUND_MS, MOST_CALLS = 5, 30.0, 50
ROOM = 0.7  # fraction of the free memory to use
AI_CPU = "AI_CPU"  # torch_npu's profiler's name
FUSED, WAITS = "codes_fused", 2


@probe(
    "speed.refit",
    "how long a refit of 7B's layers and of a layer of experts takes, in copies of their BF16",
    ("npu",),
)
def refit(on: On) -> Seen:
    """Time refits of as many layers as fit into memory, and of experts, whose gate and up are written separately."""
    seen = Seen()
    copied = _random(on, 1 << (14 if on.small else 29))  # far more than a cache holds
    target = torch.empty_like(copied)
    dense, stacks = ([(96, 64)], [(3, 64, 80)]) if on.small else (data.SEVEN_B, data.EXPERTS)
    free = ROOM * torch.npu.mem_get_info(on.device)[0]
    layers = max(1, min(28, int(free / (4 * sum(n * k for n, k in dense)))))
    for name, shapes in ((f"{layers} layers of 7B", dense * layers), ("experts of 30B-A3B", stacks)):
        sources = [_random(on, *shape) for shape in shapes]
        bytes_ = sum(source.nbytes for source in sources)
        jobs = [job for source in sources for job in _jobs(on, source)]
        copy, ms = milliseconds(lambda: target.copy_(copied)), milliseconds(lambda jobs=jobs: _refit(on, jobs))
        bandwidth = 2 * copied.nbytes / copy / 1e6
        seen.values |= {f"{name}, ms": ms, f"{name}, copies": ms * bandwidth * 1e6 / (2 * bytes_)}
        seen.values["copy, GB/s read and written"] = bandwidth
    return seen


def _jobs(on: On, source: torch.Tensor) -> list[Job]:
    """Return jobs that write a weight into new buffers: one per matrix, two per matrix of a stack of experts."""
    rows_NK, storage = source.flatten(0, -2), data.storage(source.shape, True, on)
    stand_in, scale_N = torch.empty(rows_NK.shape, dtype=torch.int8, device="meta"), storage.scale.flatten()
    step = source.shape[-2] if source.dim() == 2 else source.shape[-2] // 2
    jobs = []
    for first in range(0, len(rows_NK), step):
        part = slice(first, first + step)
        where = {"scale": scale_N[part], "first_row": first, "layout": storage.layout}
        write = Int8Write.of(rows_NK[part], stand_in[part], **where)
        jobs.append(Job.of(write, rows_NK[part]))
    return jobs


def _refit(on: On, jobs: list[Job]) -> None:
    counters = npu.Counters(on.device)
    counters.new_slots()
    npu.write(jobs, counters)
    counters.read()


def milliseconds(call: Callable[[], object]) -> float:
    """Return the median time of a call until the device is idle, in milliseconds; kernels are compiled before."""
    calls = max(1, min(MOST_CALLS, int(ROUND_MS / max(_took(call, 1), 1e-3))))
    return median(_took(call, calls) for _ in range(ROUNDS))


def _took(call: Callable[[], object], times: int) -> float:
    """Return the milliseconds of one of several calls."""
    if times == 1:
        call()
    torch.npu.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.npu.synchronize()
    return 1e3 * (time.perf_counter() - start) / times


def _random(on: On, *shape: int) -> torch.Tensor:
    """Return random BF16, generated on the device."""
    return torch.empty(shape, dtype=torch.bfloat16, device=on.device).normal_(0, 0.02)


@probe("speed.refit_calls", "which kernels a refit runs, where and how long, and how often it waits", ("npu",))
def refit_calls(on: On) -> Seen:
    """Profile the refit of one layer of a 7B model."""
    need("acl")
    jobs = [job for shape in data.SEVEN_B for job in _jobs(on, _random(on, *shape))]
    _refit(on, jobs)
    torch.npu.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            _refit(on, jobs)
    finally:
        torch.npu.set_sync_debug_mode("default")
    with tempfile.TemporaryDirectory(prefix="aq-smoke-") as folder:
        with profiler_into(folder):
            _refit(on, jobs)
            torch.npu.synchronize()
        found = kernels_of(folder)
    return judged(npu_codes.way_of(on.device).codes.__name__, found, [str(one.message) for one in said])


def judged(way: str, found: list[dict[str, Any]], said: list[str]) -> Seen:
    """Check that fused operators synchronize no more than necessary, and do not use the AI CPU."""
    waits = sum("synchroniz" in one for one in said)
    slow = [one["name"] for one in found if one["on"] == AI_CPU]
    microseconds = round(sum(one["us"] for one in found), 1)
    seen = Seen({"way": way, "waits": waits, "on the AI CPU": slow, "us": microseconds, "kernels": found})
    seen.holds(bool(found), "the profiler has seen no kernel")
    if way == FUSED:
        seen.holds(waits <= WAITS, f"it waits for the device {waits} times; {WAITS} would be enough")
        seen.holds(not slow, f"these operators run on the AI CPU: {', '.join(slow)}")
    return seen
