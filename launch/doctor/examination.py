"""The list of checks, in the order of the report, and the examination of one host. Nothing is changed on the host."""

from collections.abc import Iterable

from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import Checks, Finding, findings_of
from launch.doctor.facts import Facts

CHECKS: Checks = {
    "versions.python": versions.python,
    "versions.packages": versions.packages,
    "versions.driver": versions.driver,
    "versions.chip": versions.chip,
    "devices.present": devices.present,
    "devices.free": devices.free,
    "network.address": network.address,
    "network.ports": network.ports,
    "network.links": network.links,
    "hosts.reach": network.reach,
    "machine.shm": machine.shm,
    "machine.tmp": machine.tmp,
    "machine.memory": machine.memory,
    "machine.variables": machine.variables,
    "run.imports": run.imports,
    "run.inputs": run.inputs,
    "run.out": run.out,
}
# checked by `train` on every host
BEFORE_RAY = (
    "versions.python",
    "versions.chip",
    "devices.present",
    "network.address",
    "network.ports",
    "machine.shm",
    "machine.tmp",
    "run.imports",
    "run.inputs",
    "run.out",
)
# only the stack's Python knows; NVML is one of its packages, while npu-smi belongs to the driver
OF_THE_STACK = ("versions.packages", "versions.chip", "run.imports")
BY_NVML = ("devices.present", "devices.free")


def examined(facts: Facts, names: Iterable[str] = CHECKS) -> list[Finding]:
    """Run the checks; under the Python of another stack, only that is reported, not all differences."""
    another = any(finding.level == "error" for finding in versions.python(facts))
    left_out = (*OF_THE_STACK, *(BY_NVML if facts.kind == "gpu" else ())) if another else ()
    return findings_of({name: CHECKS[name] for name in names if name not in left_out}, facts)


def in_the_way(facts: Facts) -> list[str]:
    """Return a line with its fix for each error of the checks that `train` makes on a host before Ray starts."""
    return [f"{one.what}: {one.fix}" for one in examined(facts, BEFORE_RAY) if one.level == "error"]
