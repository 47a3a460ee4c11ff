"""All chosen checks, one after the other: here, or in a process of their own.

An operator that goes wrong on an NPU may break the device for its process, end the process, or never return. So a
child carries the checks out and tells of each; when it is of no use any more, the next one goes on with those left. A
check that wants other variables has a child of its own. What is not answered, and why, is a result as well.
"""

import contextlib
import importlib
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from multiprocessing.connection import Connection
from typing import Any

from npu_smoke.checks import CHECKS, NO, UNKNOWN, Setting, carry_out, entry

MODULES = (
    *("environment", "arithmetic", "layout", "quantize", "fused", "products", "experts", "graphs", "memory"),
    *("collective", "cache", "kv_cache", "doctor", "profiles", "engine", "generation", "clock", "speed", "training"),
)
USELESS = 2  # children in a row that begin no check: the device is beyond repair
START_S = 300.0  # of a child, until it begins its first check: it imports torch_npu
BEGIN, END, BROKEN = "begin", "end", "broken"
Event = tuple[str, Any]  # BEGIN and a check's name, END and its result, BROKEN and why nothing works any more


@dataclass
class Budget:
    """Seconds that are left for all, and the most that one check may take.

    Attributes:
        end: by time.monotonic().
        most: overrides a check's own limit where that is more.
    """

    end: float
    most: float = float("inf")

    @classmethod
    def of(cls, minutes: float, most: float = float("inf")) -> "Budget":
        return cls(time.monotonic() + 60 * minutes, most)

    @property
    def left(self) -> float:
        return self.end - time.monotonic()

    def wait(self, name: str | None) -> tuple[float, str]:
        """How long to wait for the end of a check (None: for its begin), and what to say after that."""
        limit = min(CHECKS[name].limit_s, self.most) if name else START_S
        if self.left < limit:
            return max(0.0, self.left), "no end before the time for all checks was over (--minutes)"
        return limit, f"no end after {limit:.0f} s"


def load() -> None:
    """Import all checks, and put them in the order of MODULES, those of a module as they stand there."""
    known = [importlib.import_module(f"npu_smoke.{module}").__name__ for module in MODULES]
    in_order = sorted(CHECKS.values(), key=lambda one: known.index(one.run.__module__))
    CHECKS.clear()
    CHECKS.update({one.name: one for one in in_order})


def run_here(names: Sequence[str], device: str, small: bool) -> Iterator[Event]:
    """Carry the checks out in this process.

    Raises:
        RuntimeError: there is no such device.
    """
    import torch
    import torch_npu  # noqa: F401  gives torch the device

    load()
    count = torch.npu.device_count()
    if (torch.device(device).index or 0) >= count:
        raise RuntimeError(f"there is no {device}: this process sees {count} NPUs")
    torch.npu.set_device(device)
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does: FRACTAL_NZ needs it
    setting = Setting(torch.device(device), small)
    for name in names:
        yield BEGIN, name
        yield END, carry_out(CHECKS[name], setting)
        with contextlib.suppress(Exception):  # a broken device is the next check's result
            torch.npu.empty_cache()


def run_apart(
    names: Sequence[str], device: str, small: bool, budget: Budget, work: Callable[..., None] | None = None
) -> Iterator[Event]:
    """The same in child processes.

    Args:
        work: what a child does instead of `_work`.
    """
    left, useless, why = list(names), 0, ""
    while left and useless < USELESS and budget.left > 0:
        useless += 1
        for kind, value in _told_by_child(work or _work, _alike(left), device, small, budget):
            if kind == BROKEN:
                why = value
                break
            if kind == BEGIN:
                useless = 0
            else:
                left.remove(value["name"])
            yield kind, value
    for name in left:
        late = budget.left <= 0
        reason = "the time for all checks was over (--minutes)" if late else f"the device does not work any more: {why}"
        yield BEGIN, name
        yield END, entry(CHECKS[name], UNKNOWN, f"not tried: {reason}", 0.0, {})


def _alike(names: Sequence[str]) -> list[str]:
    """Those at the beginning that one process can carry out."""
    _, first = next(groupby(names, lambda name: sorted(CHECKS[name].variables.items())))
    return list(first)


def _told_by_child(work: Callable[..., None], names: list[str], device: str, small: bool, budget: Budget):
    """The events of one child, and what it could not tell itself: how it ended."""
    begun = None
    with _child(work, names, device, small) as (process, told):
        for _ in range(2 * len(names) + 1):
            try:
                seconds, too_late = budget.wait(begun)
                kind, value = told.recv() if told.poll(seconds) else (BROKEN, too_late)
            except EOFError:
                process.join()
                if begun is None and process.exitcode == 0:
                    return
                kind, value = BROKEN, f"its process ended with code {process.exitcode}"
            if kind == BROKEN and begun:
                answer = UNKNOWN if budget.left <= 0 else NO
                yield END, entry(CHECKS[begun], answer, value, 0.0, {})
                return
            yield kind, value
            begun = value if kind == BEGIN else None


@contextlib.contextmanager
def _child(work: Callable[..., None], names: list[str], device: str, small: bool) -> Iterator[tuple]:
    """A process that works, and where it tells of it; ended afterwards."""
    context = multiprocessing.get_context("spawn")  # a device does not survive a fork
    told, teller = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(teller, list(names), device, small), daemon=True)
    with _variables(CHECKS[names[0]].variables):
        process.start()
    teller.close()
    try:
        yield process, told
    finally:
        process.join(5)
        if process.is_alive():
            process.terminate()  # it may have started others, which it ends
            process.join(10)
        if process.is_alive():
            process.kill()
            process.join()


@contextlib.contextmanager
def _variables(wanted: Mapping[str, str]) -> Iterator[None]:
    """The environment with others, which a child that starts meanwhile inherits."""
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _work(teller: Connection, names: list[str], device: str, small: bool) -> None:
    """In the child: tell of each check, until the device is broken."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # on its way out it ends what it has started
    try:
        for kind, value in run_here(names, device, small):
            first = kind == BEGIN and value == names[0] and not value.startswith("environment.")
            why = _why_broken(device) if first or (kind == END and value["answer"] == NO) else ""
            if kind == END or not why:
                teller.send((kind, value))
            if why:
                teller.send((BROKEN, why))
                return
    except Exception as why:
        teller.send((BROKEN, f"{type(why).__name__}: {why}"[:500]))


def _why_broken(device: str) -> str:
    """Why the device does not even add; "" if it does."""
    import torch

    try:
        total = int((torch.ones(8, device=device) + 1).sum())
        return "" if total == 16 else f"the sum of 8 times 1 + 1 is {total}"
    except Exception as why:
        return f"{type(why).__name__}: {why}"[:500]
