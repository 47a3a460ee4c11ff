"""Probes: their type, their list, and their execution; an error in a probe is its result, and does not end the run.

@probe("operators.layout", "where FRACTAL_NZ puts each byte", devices=("npu",))
def layout(on: On) -> Seen:
    seen = Seen()
    seen.same("bytes", found, expected)              # a problem if they differ
    seen.holds(address == before, "a weight moved")  # a problem unless it holds
    seen.values["bytes"] = len(found)                # an observation
    return seen
"""

import contextlib
import faulthandler
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result, Status, without_traces

# in this order; slow ones last
MODULES = (
    "installed", "operators", "npu.operators", "npu.graphs", "npu.speed", "engine", "sleep", "generation"
)  # fmt: skip
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
MOST_PROBLEMS = 8  # in a reason


class UnknownProbe(ValueError):
    """Raised for a name of no probe or group; the message lists those that exist."""


class NotPossible(Exception):
    """Raised if this machine cannot run a probe, naming the operator, device or package that is missing."""


@dataclass(frozen=True)
class On:
    """The device, shapes and checkpoints of a probe."""

    device: torch.device
    small: bool = False  # whether shapes are those of a dry run on a stand-in
    checkpoints: tuple[Path, Path] | None = None  # for a refit from one to the other

    def put(self, tensor: torch.Tensor) -> torch.Tensor:
        """Copy a tensor to the device."""
        return tensor.to(self.device)


@dataclass
class Seen:
    """The values that a probe has observed, and the problems that they show."""

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def holds(self, condition: bool, problem: str) -> None:
        """Record a problem unless the condition holds."""
        if not condition:
            self.problems.append(problem)

    def same(self, what: str, found: torch.Tensor, expected: torch.Tensor) -> None:
        """Record a problem if any bit differs; NaNs are equal."""
        if apart := differing(found, expected):
            self.problems.append(f"{what}: {apart}")


Look = Callable[[On], Seen]


@dataclass(frozen=True)
class Probe:
    """A probe of this installation, which answers one question."""

    name: str
    decides: str  # what the probe decides
    run: Look  # raises NotPossible, or any other exception
    devices: tuple[str, ...] = ("cpu", "cuda", "npu")  # kinds of devices on which it runs
    slow: bool = False  # whether it starts other processes, such as an engine
    limit_s: float = 60.0  # seconds after which its process is killed
    ranks: int = 1  # number of devices

    def lacks(self, there: int) -> str:
        """Return what is missing on a machine with this many devices; "" if nothing is."""
        return f"{self.ranks} devices are needed, but there are {there}" if there < self.ranks else ""


PROBES: dict[str, Probe] = {}


def need(*packages: str) -> None:
    """Raise NotPossible unless all of these packages can be imported."""
    if lacking := [name for name in packages if find_spec(name) is None]:
        raise NotPossible(f"this Python environment lacks {', '.join(lacking)}")


def probe(name: str, decides: str, *fields: Any, **named: Any) -> Callable[[Look], Look]:
    """Register a probe; the arguments are the fields of `Probe`, from `devices` on."""

    def register(function: Look) -> Look:
        PROBES[name] = Probe(name, decides, function, *fields, **named)
        return function

    return register


def probes_for(device: str, wanted: Sequence[str] = ()) -> list[Probe]:
    """Return the probes for a kind of device, in order, that have one of these names or groups.

    Raises:
        UnknownProbe: there is no such probe or group; the message lists them.
    """
    modules = [import_module(f"ascend_quant.smoke.{module}").__name__ for module in MODULES]
    in_order = sorted(PROBES.values(), key=lambda one: modules.index(one.run.__module__))
    known = [one for one in in_order if device in one.devices]
    for name in wanted:
        if not any(is_in(one.name, name) for one in known):
            raise UnknownProbe(f"no probe {name!r} for {device}; there are: {', '.join(one.name for one in known)}")
    return [one for one in known if not wanted or any(is_in(one.name, name) for name in wanted)]


def is_in(name: str, group: str) -> bool:
    """Return whether a probe has this name or belongs to this group."""
    return name == group or name.startswith(f"{group}.")


def carry_out(one: Probe, on: On) -> Result:
    """Run a probe and return its result. The process ends if it takes too long."""
    begun, seen, why, broke = time.monotonic(), Seen(), "", False
    status: Status
    with _ended_after(one.limit_s):
        try:
            if on.device.type != "cpu" and (lacking := one.lacks(getattr(torch, on.device.type).device_count())):
                raise NotPossible(lacking)
            seen = one.run(on)
            _wait_for(on.device)  # asynchronous errors of operators appear here
            status, why = (FAILED if seen.problems else OK), "; ".join(seen.problems[:MOST_PROBLEMS])
        except NotPossible as error:
            status, why = NOT_APPLICABLE, str(error)
        except Exception as error:  # an exception of the device or engine is the result
            status, why, broke = FAILED, f"{type(error).__name__}: {' '.join(str(error).split())}", True
    seconds = round(time.monotonic() - begun, 1)
    return Result(one.name, one.decides, status, seconds, without_traces(why), dict(seen.values), broke)


@contextlib.contextmanager
def _ended_after(seconds: float) -> Iterator[None]:
    """End the process, with all stacks on stderr, if the block exceeds the limit, even if Python is blocked."""
    faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def differing(found: torch.Tensor, expected: torch.Tensor) -> str:
    """Describe how bits differ; "" if they do not. NaNs are equal."""
    found, expected = found.cpu().contiguous(), expected.cpu().contiguous()
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{tuple(found.shape)} {found.dtype}, by the definition {tuple(expected.shape)} {expected.dtype}"
    bits, wanted = (one.flatten().view(INTEGERS[one.element_size()]) for one in (found, expected))
    apart = bits != wanted
    if found.is_floating_point():
        apart &= ~(found.isnan() & expected.isnan()).flatten()
    if not (count := int(apart.sum())):
        return ""
    first = int(apart.nonzero()[0])
    values = (one.flatten()[first].item() for one in (found, expected))
    return "{} of {} differ, the first, number {}: {:g}, by the definition {:g}".format(
        count, found.numel(), first, *values
    )
