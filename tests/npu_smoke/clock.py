"""Medians over rounds, alternatives in rotated order, by the device's own clock where it has one."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import torch

from benchmarks.timing import rotated, summary
from npu_smoke.checks import NotPossible, Setting, check, require
from npu_smoke.graphs import capture

ROUND_MS, MOST = 30.0, 50  # of one method in one round, about; calls in it
CAPTURED = 10  # calls in one graph: its launch is then a tenth of what is measured
ROUNDS = 5


@check("clock.events", needed=False)
def events(on: Setting, numbers: dict) -> None:
    """Do the device's events measure time? Otherwise the host's clock does."""
    x = torch.ones(256 if on.small else 4096, 256 if on.small else 4096, device=on.device)
    milliseconds = by_events(lambda: x @ x, 5)
    numbers["milliseconds of a product"] = {"events": milliseconds, "host": by_host(lambda: x @ x, 5)}
    if milliseconds <= 0:
        raise NotPossible("two events around five products are no time apart")
    require(milliseconds < 1e5, f"events say that a product takes {milliseconds} ms")


def compare(methods: Mapping[str, Callable[[], object]], on: Setting, rounds: int = ROUNDS) -> dict[str, dict]:
    """Milliseconds of one call of each, several calls in a row: median, low, high."""
    rounds = 1 if on.small else rounds
    clock = by_events if _events_work() else by_host
    repeats = {name: _repeats(call, on) for name, call in methods.items()}
    samples: dict[str, list[float]] = {name: [] for name in methods}
    for turn in range(rounds):
        for name in rotated(list(methods), turn):
            samples[name].append(clock(methods[name], repeats[name]))
    return {name: summary(found) | {"clock": clock.__name__.removeprefix("by_")} for name, found in samples.items()}


def compare_captured(methods: Mapping[str, Callable[[], object]], on: Setting) -> dict[str, Any]:
    """The same of calls in an ACL graph, where the host's time for launches does not count.

    Raises:
        NotPossible: nothing can be captured here.
    """
    times = 1 if on.small else CAPTURED

    def repeated(call: Callable[[], object]) -> None:
        for _ in range(times):
            call()

    replays = {name: capture(lambda call=call: repeated(call))[0] for name, call in methods.items()}
    found = compare(replays, on)
    figures = ("median", "low", "high")
    return {name: one | {figure: one[figure] / times for figure in figures} for name, one in found.items()}


def _repeats(call: Callable[[], object], on: Setting) -> int:
    call()  # what it has to compile is compiled here
    if on.small:
        return 1
    return max(1, min(MOST, int(ROUND_MS / max(by_host(call, 1), 1e-3))))


def _events_work() -> bool:
    x = torch.ones(1 << 16, device="npu")
    return by_events(lambda: x + x, 20) > 0


def by_events(call: Callable[[], object], repeats: int) -> float:
    """Milliseconds of one of several calls between two events on the device."""
    begin, end = (torch.npu.Event(enable_timing=True) for _ in range(2))
    torch.npu.synchronize()
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / repeats


def by_host(call: Callable[[], object], repeats: int) -> float:
    """Milliseconds of one of several calls, until the device is idle."""
    torch.npu.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.npu.synchronize()
    return 1e3 * (time.perf_counter() - start) / repeats
