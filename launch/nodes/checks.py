"""What must be right on this host before Ray starts. All that is wrong is told at once, a line each."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch import door, network, private
from launch.errors import LaunchError
from launch.network import Wire
from launch.nodes import files, ports
from launch.nodes.facts import Devices, chosen
from launch.plan.fields import NodePlan
from launch.software import missing, python_path

LEAST_DISK = 1 << 30
LEAST_SHM = 64 << 20


@dataclass(frozen=True)
class Checked:
    """What the checks chose: how the host is reached, and the numbers of its devices."""

    wire: Wire
    devices: list[int]


@dataclass
class Findings:
    """What was found: a part that could not be chosen is None, and `problems` says why."""

    wire: Wire | None = None
    devices: list[int] | None = None
    problems: list[str] = field(default_factory=list)


def find(plan: NodePlan, facts: dict[str, Any]) -> Findings:
    """Look at everything, whatever is wrong with the rest."""
    found = Findings()
    try:
        found.wire = network.choose(plan.address, plan.nic)
    except LaunchError as error:
        found.problems += str(error).splitlines()
    try:
        found.devices = chosen(plan.devices, Devices(**facts["devices"]))
    except LaunchError as error:
        found.problems += str(error).splitlines()
    found.problems += ports.taken(ports.needed(plan.role, plan.ports))
    found.problems += [f"{path} is missing on this host" for path in plan.needs if not Path(path).exists()]
    found.problems += files.lacking(plan.needs, plan.columns)
    found.problems += files.room(plan.saving) if plan.saving else []
    said = {name: value for _, variables in plan.layers for name, value in variables.items()}
    found.problems += [f"{one.what}: {one.fix}" for one in missing(plan.imports, python_path(said))]
    found.problems += room(plan.temp_dir, facts)
    found.problems += door.problems()
    return found


def check(plan: NodePlan, facts: dict[str, Any]) -> Checked:
    """Check this host for its part of the run.

    Raises:
        LaunchError: every problem, a line each.
    """
    found = find(plan, facts)
    if found.problems:
        raise LaunchError("\n".join(found.problems))
    return Checked(found.wire, found.devices)


def room(temp_dir: str, facts: dict[str, Any]) -> list[str]:
    """What is wrong with the places that Ray writes to."""
    problems = []
    try:
        private.make_folder(Path(temp_dir).parent)
    except LaunchError as error:
        problems.append(f"{error}: Ray's folder cannot lie there; have it removed")
    if not facts["versions"].get("ray"):
        problems.append("Ray is not installed here: is this the Python of the stack? (`python` in the inventory)")
    if facts["disk_free"] < LEAST_DISK:
        problems.append(f"{Path(temp_dir).parents[1]} has {facts['disk_free'] >> 20} MiB left, and Ray needs 1024 MiB")
    if facts["shm"] <= LEAST_SHM:
        problems.append(
            f"/dev/shm has {facts['shm'] >> 20} MiB, Docker's default: give the container --shm-size or --ipc host"
        )
    return problems
