"""Made-up facts of a host where all is well, for the checks; a test changes what it is about."""

from collections import namedtuple
from collections.abc import Callable, Iterable
from dataclasses import replace

from launch.doctor.checking import Finding
from launch.doctor.drivers import Device, Devices
from launch.doctor.facts import Facts
from launch.plan import Wanted
from launch.recipes.stacks import pins
from launch.system.software import Package

PYTHONS = {"cpu": "3.11.7", "ascend-cann8.5": "3.10.12", "ascend-cann9.1": "3.12.4", "cuda13": "3.12.4"}
NPU_FILES = ["davinci0", "davinci1", "davinci_manager", "devmm_svm", "hisi_hdc"]
NPUS = Devices("npu-smi", driver="25.5.1", found=tuple(Device(number, "910B3", "OK", 3400, 65536) for number in (0, 1)))
GPUS = Devices("nvidia-smi", driver="580.95", found=(Device(0, "NVIDIA H200", "OK", 5, 143771),))
Usage = namedtuple("Usage", "total used free")


def packages(stack: str) -> dict[str, Package]:
    """As the stack pins them, with the suffixes that builds add."""
    pinned = pins(stack)
    found = {name: Package("0") for name in pinned.sources}
    found |= {name: Package(f"{version}+local") for name, version in pinned.packages.items()}
    found |= {name: replace(found[name], commit=source.commit) for name, source in pinned.sources.items()}
    return {name.lower(): package for name, package in found.items()} | {"ascend-quant": Package("0.1.0")}


def disks(total: int, free: int) -> dict[str, object]:
    """Every disk has so many bytes."""
    return {"shutil.disk_usage": lambda _: Usage(total, total - free, free)}


def wanted(stack: str = "ascend-cann9.1", **fields: object) -> Wanted:
    """What a run on two hosts wants of the first."""
    return Wanted(**({"stack": stack, "hosts": 2, "address": "192.0.2.11"} | fields))


def well(run: Wanted | None = None, **changed: object) -> Facts:
    """A host of two A2 NPUs, of a GPU, or of no device on stack cpu, with other facts in place of those `changed`."""
    run = run or wanted()
    facts = Facts(run)
    facts.python, facts.variables = PYTHONS[run.stack], dict(run.environment)
    vars(facts)["devices"] = {"npu": NPUS, "gpu": GPUS, "none": Devices()}[facts.kind]
    vars(facts)["device_files"] = NPU_FILES if facts.kind == "npu" else []
    vars(facts)["packages"] = packages(run.stack)
    vars(facts)["cann"] = (pins(run.stack).cann, "the file")
    vars(facts)["nics"] = {"lo": ["127.0.0.1"], "bond0": ["192.0.2.11"]}
    vars(facts).update(changed)
    return facts


def said(check: Callable[[Facts], Iterable[Finding]], facts: Facts) -> list[tuple[str, str]]:
    """(level, what and fix) of each problem."""
    return [(finding.level, f"{finding.what} | {finding.fix}") for finding in check(facts)]
