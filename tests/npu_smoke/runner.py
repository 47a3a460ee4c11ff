"""All chosen checks, one after the other: here, or in a process of their own.

An operator that goes wrong on an NPU may break the device for its process, end the process, or never return. So a
child carries the checks out and tells of each; when it is of no use any more, the next one goes on with those left.
"""

import contextlib
import importlib
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from typing import Any

from npu_smoke.checks import CHECKS, FAILED, Setting, carry_out, entry

MODULES = ("environment", "arithmetic", "layout", "quantize", "products", "experts", "graphs", "clock", "speed")
USELESS = 2  # children in a row that begin no check: the device is beyond repair
BEGIN, END, BROKEN = "begin", "end", "broken"
Event = tuple[str, Any]  # BEGIN and a check's name, END and its result, BROKEN and why nothing works any more


def load() -> None:
    """Import all checks, and put them in the order of MODULES, those of a module as they stand there."""
    known = [importlib.import_module(f"npu_smoke.{module}").__name__ for module in MODULES]
    in_order = sorted(CHECKS.values(), key=lambda one: known.index(one.run.__module__))
    CHECKS.clear()
    CHECKS.update({one.name: one for one in in_order})


def run_here(names: Sequence[str], device: str, small: bool) -> Iterator[Event]:
    """Carry the checks out in this process."""
    import torch
    import torch_npu  # noqa: F401  gives torch the device

    load()
    torch.npu.set_device(device)
    torch.npu.config.allow_internal_format = True  # as vllm-ascend's worker does: FRACTAL_NZ needs it
    setting = Setting(torch.device(device), small)
    for name in names:
        yield BEGIN, name
        yield END, carry_out(CHECKS[name], setting)
        with contextlib.suppress(Exception):  # a broken device is the next check's result
            torch.npu.empty_cache()


def run_apart(
    names: Sequence[str], device: str, small: bool, limit_s: float, work: Callable[..., None] | None = None
) -> Iterator[Event]:
    """The same in child processes.

    Args:
        limit_s: for one check.
        work: what a child does instead of `_work`.
    """
    left, useless, why = list(names), 0, ""
    while left and useless < USELESS:
        useless += 1
        for kind, value in _told_by_child(work or _work, left, device, small, limit_s):
            if kind == BROKEN:
                why = value
                break
            if kind == BEGIN:
                useless = 0
            else:
                left.remove(value["name"])
            yield kind, value
    for name in left:
        yield BEGIN, name
        yield END, entry(CHECKS[name], FAILED, f"not tried: the device does not work any more: {why}", 0.0, {})


def _told_by_child(work: Callable[..., None], names: list[str], device: str, small: bool, limit_s: float):
    """The events of one child, and what it could not tell itself: how it ended."""
    begun = None
    with _child(work, names, device, small) as (process, told):
        for _ in range(2 * len(names) + 1):
            try:
                why = "" if told.poll(limit_s) else f"no end after {limit_s:.0f} s"
                kind, value = (BROKEN, why) if why else told.recv()
            except EOFError:
                process.join()
                if begun is None and process.exitcode == 0:
                    return
                kind, value = BROKEN, f"its process ended with code {process.exitcode}"
            if kind == BROKEN and begun:
                yield END, entry(CHECKS[begun], FAILED, value, 0.0, {})
                return
            yield kind, value
            begun = value if kind == BEGIN else None


@contextlib.contextmanager
def _child(work: Callable[..., None], names: list[str], device: str, small: bool) -> Iterator[tuple]:
    """A process that works, and where it tells of it; ended afterwards."""
    context = multiprocessing.get_context("spawn")  # a device does not survive a fork
    told, teller = context.Pipe(duplex=False)
    process = context.Process(target=work, args=(teller, list(names), device, small), daemon=True)
    process.start()
    teller.close()
    try:
        yield process, told
    finally:
        process.join(5)
        if process.is_alive():
            process.kill()
            process.join()


def _work(teller: Connection, names: list[str], device: str, small: bool) -> None:
    """In the child: tell of each check, until the device is broken."""
    try:
        for kind, value in run_here(names, device, small):
            first = kind == BEGIN and value == names[0] and not value.startswith("environment.")
            why = _why_broken(device) if first or (kind == END and value["status"] == FAILED) else ""
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
