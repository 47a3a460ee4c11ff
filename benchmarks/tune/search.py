"""The measurement loop of command.py: parallel compilation, then timing one choice after the other.

A kind of product is a module, such as linear.py, with

    NAME, MODELS {model: shapes}
    candidates(shape, rows, capability, processors) -> choices, vLLM's own kernel first if it supports the shape
    refined(choice, capability) -> variants of a good choice
    compiled(choice) -> key that distinguishes compiled kernels
    warm(choice, shape, rows): compiles a choice, with the smallest tensors that do
    prepare(shape, rows, copies) -> call(choice, copy), which computes once; without a choice, all but the product
    wrong(call, choice) -> what is wrong with the result, or None
    copy_bytes(shape): bytes of weights per call; floor(shape, rows, gpu): lower bound in seconds, or None

Times are measured inside a CUDA graph, with weights that are not in the L2 cache.
"""

import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from importlib import import_module
from itertools import pairwise
from typing import NamedTuple

import torch

from ascend_quant.kernels import tuned
from ascend_quant.kernels.tuned import Choice

MODULES = {"linear": "benchmarks.tune.linear", "experts": "benchmarks.tune.experts"}
COLD = 160e6  # bytes of weights between two uses of the same weight: three times the largest L2 cache
CALLS, MANY_ROWS = 16, 1024  # minimum calls per graph; a quarter of them for products of more rows
ROUGH, FINE = 3, 9  # replays of a graph: for all choices, for the best ones
BEST = 4  # number of choices that are timed again, with their variants
MARGIN = 0.02  # by which another kernel must be faster than vLLM's to replace it
SHARED = {(8, 0): 163 << 10, (9, 0): 227 << 10, (10, 0): 227 << 10}  # bytes of shared memory by compute capability
LESS_SHARED = 99 << 10  # for all others (sm86, sm89, sm120)
PEAK = {"NVIDIA_H200": (4.3e12, 1.28e15), "NVIDIA_H100": (2.9e12, 1.28e15), "NVIDIA_A100": (1.7e12, 0.5e15)}


class Job(NamedTuple):
    """A GEMM or fused MoE to tune: its kind, shape, and number of rows."""

    kind: str
    shape: tuple[int, ...]
    rows: int


class Measured(NamedTuple):
    """The result of tuning a job.

    Attributes:
        choice: the fastest choice with a correct result; None without one.
        seconds: time of that choice; `before`: time of vLLM's own kernel, if it supports the shape; `floor`: lower
            bound, if known.
        tried: number of timed choices.
        problems: choices that failed or gave a wrong result.
    """

    job: Job
    choice: Choice | None
    seconds: float | None
    before: float | None
    floor: float | None
    tried: int
    problems: list[str]


def known_shapes() -> list[tuple[str, tuple[int, ...]]]:
    """Return the kinds and shapes of the known models."""
    return [(kind, shape) for kind, module in MODULES.items() for shape in import_module(module).SHAPES]


def to_compile(jobs: Iterable[Job]) -> list[tuple[Job, Choice]]:
    """Return one choice for each kernel that any job may need."""
    found: dict[object, tuple[Job, Choice]] = {}
    capability = torch.cuda.get_device_capability()
    for job in jobs:
        kind = import_module(MODULES[job.kind])
        for choice in _candidates(job):
            for variant in (choice, *kind.refined(choice, capability)):
                found.setdefault((job.kind, kind.compiled(variant)), (job, variant))
    return list(found.values())


def warm(wanted: Iterable[tuple[Job, Choice]], limit: float, workers: int | None = None) -> Iterator[str | None]:
    """Compile in parallel into the shared on-disk cache; yield an error or None for each choice.

    Raises:
        TimeoutError: after `limit` seconds; kernels that are not compiled by then are compiled when they are timed.
    """
    workers = workers or min(16, len(os.sched_getaffinity(0)))
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))
    try:
        for done in as_completed([pool.submit(_warm, *one) for one in wanted], timeout=limit):
            error = done.exception()
            yield None if error is None else f"{type(error).__name__}: {error}"
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def measure(job: Job, deadline: float) -> Measured:
    """Time a job's choices: all of them roughly, then the best ones precisely.

    Args:
        deadline: time of `time.monotonic` after which no more choices are tried.
    """
    kind, capability = import_module(MODULES[job.kind]), torch.cuda.get_device_capability()
    copies = 1 + int(COLD // kind.copy_bytes(job.shape))
    call = kind.prepare(job.shape, job.rows, copies)
    calls = CALLS if job.rows <= MANY_ROWS else CALLS // 4
    problems: list[str] = []

    def timed(choices: Iterable[Choice], replays: int, until: float = float("inf")) -> list[tuple[float, Choice]]:
        times = []
        for choice in choices:
            if time.monotonic() > until:
                break
            try:
                times.append((seconds(call, choice, copies, replays, calls), choice))
            except Exception as error:  # a choice that this GPU or this vLLM does not support
                problems.append(f"{choice}: {type(error).__name__}: {error}"[:300])
        return sorted(times, key=lambda one: one[0])

    idle = seconds(call, None, copies, FINE, calls)
    rough = timed(_candidates(job), ROUGH, deadline)
    best = [choice for _, choice in rough[:BEST]]
    best += [variant for choice in best for variant in kind.refined(choice, capability)]
    ours = [choice for choice in _candidates(job)[:1] if _is_vllms(choice) and choice not in best]
    fine = [one for one in timed(ours + best, FINE) if _right(kind, call, one[1], problems)]
    before = next((took for took, choice in fine if _is_vllms(choice)), None)
    took, choice = _fastest(fine, before)
    floor = kind.floor(job.shape, job.rows, tuned.gpu_name())
    known = [None if value is None else value - idle for value in (took, before)]
    return Measured(job, choice, *known, floor, len(rough), problems)


def seconds(
    call: Callable[[Choice | None, int], object],
    choice: Choice | None,
    copies: int,
    replays: int,
    at_least: int = CALLS,
) -> float:
    """Return the median time of a call, in a CUDA graph of many calls with different copies of the weights."""
    calls = -(-at_least // copies) * copies
    graph, stream = torch.cuda.CUDAGraph(), _side_stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        call(choice, 0)
        torch.cuda.synchronize()
        graph.capture_begin()  # torch.cuda.graph() would run the garbage collector first, which takes long
        try:
            for i in range(calls):
                call(choice, i % copies)
        finally:
            graph.capture_end()
        graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(replays + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
    torch.cuda.synchronize()
    return statistics.median(before.elapsed_time(after) for before, after in pairwise(events)) / calls / 1e3


@cache
def _side_stream() -> torch.cuda.Stream:
    """Return the stream on which CUDA graphs are captured, which cannot be the default stream."""
    return torch.cuda.Stream()


def _candidates(job: Job) -> list[Choice]:
    processors = torch.cuda.get_device_properties(0).multi_processor_count
    kind, capability = import_module(MODULES[job.kind]), torch.cuda.get_device_capability()
    return kind.candidates(job.shape, job.rows, capability, processors)


def _warm(job: Job, choice: Choice) -> None:
    import_module(MODULES[job.kind]).warm(choice, job.shape, job.rows)


def _is_vllms(choice: Choice) -> bool:
    return choice["by"] in tuned.VLLM


def _right(kind, call, choice: Choice, problems: list[str]) -> bool:
    said = kind.wrong(call, choice)
    problems += [f"{choice}: {said}"] if said else []
    return not said


def _fastest(times: list[tuple[float, Choice]], before: float | None) -> tuple[float | None, Choice | None]:
    """Return the fastest choice, but vLLM's if no other is clearly faster."""
    if not times:
        return None, None
    if before is not None and times[0][0] > before * (1 - MARGIN):
        return next(one for one in times if _is_vllms(one[1]))
    return times[0]


def shared_bytes(capability: tuple[int, int]) -> int:
    """Return how many bytes of shared memory a program may have."""
    return SHARED.get(capability, LESS_SHARED)


def least_seconds(gpu: str, moved: float, operations: float) -> float | None:
    """Return a lower bound in seconds for bytes of memory and int8 operations; None for unknown GPUs."""
    known = next((speeds for name, speeds in PEAK.items() if gpu.startswith(name)), None)
    return None if known is None else max(moved / known[0], operations / known[1])
