"""What this host is, and how hosts differ: name, NICs, accelerators, versions, clock, and room on disk and in memory.

A clock is compared by the times of a question and its answer, with the way measured out.
"""

import os
import shutil
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from launch import network
from launch.doctor import drivers
from launch.doctor.examination import versions_of
from launch.doctor.versions import software
from launch.errors import LaunchError
from launch.stacks import pins

ALLOWED_SECONDS = 5  # that clocks may differ by


def gather(stack: str, temp_dir: str) -> dict[str, Any]:
    """The facts that the control host compares and shows; sizes in bytes."""
    return {
        "name": socket.gethostname(),
        "clock": time.time(),
        "nics": network.nics(),
        "devices": asdict(found(stack)),
        "versions": versions_of(software(os.environ)),
        "memory": psutil.virtual_memory().total,
        "shm": shutil.disk_usage("/dev/shm").total,
        "disk_free": shutil.disk_usage(Path(temp_dir).parents[1]).free,
        "cores": psutil.cpu_count(),
    }


@dataclass(frozen=True)
class Devices:
    """What a stack's devices are (`npu`, `gpu` or `none`) and the numbers of those that are there."""

    kind: str
    numbers: list[int]


def found(stack: str) -> Devices:
    """The devices of this host that the stack can use; NPUs by their device files, as Ray counts them."""
    kind = pins(stack).devices
    if kind == "npu":
        return Devices(kind, drivers.npu_numbers())
    return Devices(kind, [device.number for device in drivers.devices(kind).found])


def chosen(wanted: int | list[int], there: Devices) -> list[int]:
    """The numbers of the devices that this host's part of the run uses.

    On stack cpu a device is a name only.

    Raises:
        LaunchError: there are none, or not those that are wanted.
    """
    if there.kind == "none":
        return wanted if isinstance(wanted, list) else list(range(wanted))
    what = {"npu": "NPU (/dev/davinci*)", "gpu": "GPU (NVML)"}[there.kind]
    if not there.numbers:
        raise LaunchError(f"no {what} on this host: check the driver, or the container's device options")
    if isinstance(wanted, int):
        if wanted > len(there.numbers):
            raise LaunchError(f"{wanted} devices are wanted, and this host has {len(there.numbers)} {what}")
        return there.numbers[:wanted]
    if missing := [number for number in wanted if number not in there.numbers]:
        raise LaunchError(f"no {what} {missing}: this host has {there.numbers}")
    return wanted


def skew(head: dict[str, str], other: dict[str, str]) -> list[str]:
    """What differs between two hosts: 'ray 2.60.0, the head has 2.59.0'."""
    names = [*head, *(name for name in other if name not in head)]
    return [
        f"{name} {other.get(name, 'missing')}, the head has {head.get(name, 'none')}"
        for name in names
        if head.get(name) != other.get(name)
    ]


@dataclass
class Clock:
    """The best measurement so far: the one whose question and answer took least."""

    offset: float = 0.0
    error: float = float("inf")

    def take(self, asked: float, answered: float, theirs: float) -> None:
        """A question was asked and answered at these times of this clock, and the host's clock then said `theirs`."""
        error = (answered - asked) / 2
        if 0 <= error < self.error:
            self.offset, self.error = theirs - (asked + answered) / 2, error

    @property
    def known(self) -> bool:
        """Whether an answer has come."""
        return self.error < float("inf")

    def wrong(self, whose: str = "the control host's") -> str | None:
        """What is wrong, if the difference is too large whatever the way took; it was compared with `whose` clock."""
        if abs(self.offset) - self.error <= ALLOWED_SECONDS:
            return None
        ahead = "ahead of" if self.offset > 0 else "behind"
        return f"clock skew: its clock is {abs(self.offset):.0f} s {ahead} {whose}: set it (chrony, ntpd)"


def kernel_kills() -> int:
    """How many processes this host's kernel has ended for want of memory since it started; 0 if it does not say."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
