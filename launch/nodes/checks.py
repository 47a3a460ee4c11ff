"""Checks of this host, and of differences between hosts, before Ray starts.

All problems are reported at once, one per line.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from launch import LaunchError, port_guard
from launch.doctor import drivers
from launch.doctor.examination import in_the_way, versions_of
from launch.doctor.facts import Wanted
from launch.doctor.versions import software
from launch.environment import network
from launch.environment.network import Wire
from launch.environment.resolve import environment
from launch.inputs import model
from launch.nodes.checkpoints import lacking_room
from launch.nodes.rows import lacking
from launch.plan import NodePlan
from launch.recipes.stacks import pins
from launch.system import private
from launch.system.software import has_module

DATA = ("gsm8k", "dapo-math-17k", "addition")  # data sets of ./run.sh data, each in a folder of its name


def versions() -> dict[str, str]:
    """Return the versions of this host's software, which a worker compares with the head's."""
    return versions_of(software(os.environ))


def found(kind: str) -> list[int]:
    """Return the numbers of this host's devices of a kind (`npu`, `gpu`, `none`); NPUs by device files, as in Ray."""
    return drivers.npu_numbers() if kind == "npu" else [device.number for device in drivers.devices(kind).found]


def chosen(wanted: int | list[int], kind: str, there: list[int]) -> list[int]:
    """Return the numbers of the devices that this host's part of the run uses.

    On stack cpu a device is a name only.

    Raises:
        LaunchError: there are no devices, or not the requested ones.
    """
    if kind == "none":
        return wanted if isinstance(wanted, list) else list(range(wanted))
    what = {"npu": "NPU (/dev/davinci*)", "gpu": "GPU (NVML)"}[kind]
    if not there:
        raise LaunchError(f"no {what} on this host: check the driver, or the container's device options")
    if isinstance(wanted, int):
        if wanted > len(there):
            raise LaunchError(f"{wanted} devices are required, but this host has {len(there)} {what}")
        return there[:wanted]
    if missing := [number for number in wanted if number not in there]:
        raise LaunchError(f"this host has no {what} {missing}, only {there}")
    return wanted


def skew(head: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the software in which a host differs from the head: 'ray 2.60.0, the head has 2.59.0'."""
    names = [*head, *(name for name in other if name not in head)]
    return [
        f"{name} {other.get(name, 'missing')}, the head has {head.get(name, 'none')}"
        for name in names
        if head.get(name) != other.get(name)
    ]


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
    said = {name: value for _, variables in plan.layers for name, value in variables.items()}
    head = plan.role == "head"
    wanted = Wanted(stack=plan.stack, head=head, ports=plan.ports, environment=said, imports=plan.imports)
    checked, problems = Checked(), in_the_way(wanted)
    try:
        checked.wire = network.choose(plan.address, plan.nic)
    except LaunchError as error:
        problems += str(error).splitlines()
    kind = pins(plan.stack).devices
    if (there := found(kind)) or kind == "none":  # otherwise the reason for the missing device is reported
        try:
            checked.devices = chosen(plan.devices, kind, there)
            checked.places = [there.index(one) if there else one for one in checked.devices]
        except LaunchError as error:
            problems += str(error).splitlines()
    if plan.model is not None:
        told = model.problems(plan.model, plan.tensor_parallel, environment(plan.stack, {**os.environ, **said}))
        problems += [f"{what}: {fix}" for what, fix in told]
    files = [path for path in plan.needs if path != plan.model]
    problems += [f"{path} is missing on this host: {put(path)}" for path in files if not os.path.exists(path)]
    problems += lacking(plan.needs, plan.columns, plan.prompt, plan.least_rows)
    problems += [f"{what}: {fix}" for what, fix in lacking_room(plan.saving)]
    problems += room(plan.temp_dir)
    problems += port_guard.problems() if plan.socket_filter else []
    return checked, problems


def put(path: str) -> str:
    """Return what to do about a missing path."""
    if not path.endswith(".parquet"):
        return "copy it there, or correct the setting that names it"
    folder = Path(path).parent
    made = f"./run.sh data {folder.name} --to {folder.parent}, or " if folder.name in DATA else ""
    return f"{made}correct --data"


def check(plan: NodePlan) -> Checked:
    """Check this host for its part of the run.

    Raises:
        LaunchError: there are problems; the message has a line for each.
    """
    checked, problems = find(plan)
    if problems:
        raise LaunchError("\n".join(problems))
    return checked


def room(temp_dir: str) -> list[str]:
    """Return the problems with Ray, and with the folder to which it writes."""
    problems = []
    try:
        private.make_folder(Path(temp_dir).parent)
    except LaunchError as error:
        problems.append(f"{error}: Ray's folder cannot be created there; have it removed")
    if not has_module("ray"):
        problems.append("Ray is not installed here: is this the Python of the stack? (`python` in the inventory)")
    return problems
