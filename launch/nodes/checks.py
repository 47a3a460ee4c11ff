"""Checks of this host, and of differences between hosts, before Ray starts.

All problems are reported at once, one per line.
"""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launch import LaunchError
from launch.doctor.examination import in_the_way
from launch.doctor.facts import Facts
from launch.environment import network
from launch.environment.network import Wire
from launch.plan import NodePlan, Wanted
from launch.system import private


def versions() -> dict[str, str]:
    """Return the versions of this host's software, which a worker compares with the head's."""
    return Facts(Wanted()).versions


def kernel_kills() -> int:
    """Return how many processes this host's kernel has OOM-killed since boot; 0 if it does not report it."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


@dataclass
class Checked:
    """The result of the checks; a field is None if it could not be determined.

    Attributes:
        wire: network interface and address of the host.
        devices: numbers of the devices.
        places: indexes of these devices among those of this host or container, from 0.
    """

    wire: Wire | None = None
    devices: list[int] | None = None
    places: list[int] | None = None


def find(plan: NodePlan) -> tuple[Checked, list[str]]:
    """Run all checks, even if some fail; return the results, and a line for each problem."""
    facts = Facts(plan)
    problems, checked = in_the_way(facts), Checked()
    with suppress(LaunchError):  # which is among the problems
        checked.wire = network.choose(plan.address, plan.nic)
    checked.devices, checked.places = chosen(plan.devices, facts)
    try:
        private.make_folder(Path(plan.temp_dir).parent)
    except LaunchError as error:
        problems.append(f"{error}: Ray's folder cannot be created there; have it removed")
    return checked, problems


def chosen(wanted: int | list[int], facts: Facts) -> tuple[list[int], list[int]] | tuple[None, None]:
    """Return the numbers of the devices that this host's part of the run uses, and their indexes among those there.

    On stack cpu a device is a name only. Both are None if a device is missing, which is among the problems.
    """
    first = list(range(wanted)) if isinstance(wanted, int) else wanted
    if facts.kind == "none":
        return first, first
    there = facts.devices.numbers
    numbers = there[:wanted] if isinstance(wanted, int) else wanted
    if len(numbers) < len(first) or not set(numbers) <= set(there):
        return None, None
    return numbers, [there.index(one) for one in numbers]
