"""Samples, and how they are taken: the device's own clock where there is one, alternatives in rotated order."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

import torch

ROUND = 0.3  # seconds of one method in one round, about
MOST = 5  # repetitions in one round


@dataclass
class Samples:
    """Samples of one method, a number a round.

    Attributes:
        ms: of one repetition among several that follow each other without a wait.
        host_ms: until a call returns that found the device idle; the device may still be at it.
    """

    ms: list[float] = field(default_factory=list)
    host_ms: list[float] = field(default_factory=list)


def summary(samples: list[float]) -> dict[str, float]:
    """Return median and spread of samples."""
    return {"median": median(samples), "low": min(samples), "high": max(samples), "count": len(samples)}


def wait(device: torch.device) -> None:
    """Wait until the device has done what it was asked for."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def compare(methods: Mapping[str, Callable[[], object]], device: torch.device, rounds: int) -> dict[str, Samples]:
    """Time methods in rounds; each round begins with another one."""
    repeats = {name: _repeats(call, device) for name, call in methods.items()}
    samples = {name: Samples() for name in methods}
    for turn in range(rounds):
        for name in rotated(list(methods), turn):
            host, each = _round(methods[name], device, repeats[name])
            samples[name].host_ms.append(host)
            samples[name].ms.append(each)
    return samples


def rotated(items: list, turn: int) -> list:
    """Return the same items, another one first in every turn."""
    start = turn % max(len(items), 1)
    return items[start:] + items[:start]


def _repeats(call: Callable[[], object], device: torch.device) -> int:
    """Return how often to repeat a method in one round; what it has to compile is compiled here."""
    call()
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return max(1, min(MOST, int(ROUND / (time.perf_counter() - start))))


def _round(call: Callable[[], object], device: torch.device, repeats: int) -> tuple[float, float]:
    """Time one round: host and whole milliseconds of one call."""
    wait(device)
    start = time.perf_counter()
    call()
    host = 1e3 * (time.perf_counter() - start)
    wait(device)
    if device.type != "cuda":
        return host, _wall(call, repeats)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return host, begin.elapsed_time(end) / repeats


def _wall(call: Callable[[], object], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    return 1e3 * (time.perf_counter() - start) / repeats


@dataclass(frozen=True)
class Once:
    """Result of one call, timed alone.

    Attributes:
        ms: until the device was done.
        host_ms: until the call returned.
        extra_bytes: device memory it needed at most, beyond what was in use before; None where nothing tells.
    """

    ms: float
    host_ms: float
    extra_bytes: int | None


def once(call: Callable[[], object], device: torch.device) -> Once:
    """Time one call and the memory that it needs."""
    wait(device)
    before = 0
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
    start = time.perf_counter()
    call()
    host = 1e3 * (time.perf_counter() - start)
    wait(device)
    whole = 1e3 * (time.perf_counter() - start)
    extra = torch.cuda.max_memory_allocated(device) - before if device.type == "cuda" else None
    return Once(whole, host, extra)
