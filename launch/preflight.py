"""Before a container computes: the first thing that would stop it, in one line, by the doctor's facts and checks.

The entry point of our images asks with `python -m launch preflight VERB`. It must be quick: no import of torch, and
nothing is asked that only slow programs know. `./run.sh doctor` looks at all the rest.
"""

import os
import platform
from collections.abc import Iterator, Mapping

from launch.doctor.checking import Check
from launch.doctor.checks import devices, system, versions
from launch.doctor.checks.system import system as machine
from launch.doctor.checks.versions import CHIP_VARIABLE, chip_of_build
from launch.doctor.examination import DEVICES, attempt, gathered
from launch.doctor.facts import Devices, Facts, Kernels, Leftovers, Links, Network, Software
from launch.doctor.requirements import Wanted
from launch.stacks import pins

SWITCH = "ASCEND_QUANT_PREFLIGHT"  # off: look at nothing
TEMPORARY = "/tmp"
DRIVER = "/usr/local/Ascend/driver"
LOOKING = {
    "bundle",
    "doctor",
    "manifest",
}  # verbs that compute nothing: Python alone needs a folder for what is temporary
ELSEWHERE = {"--help", "--dry-run", "--cluster"}  # with these a command computes nothing here
NPU_DRIVER = (
    f"mount the host's: docker run -v {DRIVER}:{DRIVER}:ro -v /usr/local/dcmi:/usr/local/dcmi:ro "
    "-v /usr/local/bin/npu-smi:/usr/local/bin/npu-smi:ro"
)
NPU_DEVICES = "docker run --device /dev/davinci0 " + " ".join(f"--device /dev/{name}" for name in devices.NPU_FILES)
GPUS = "docker run --gpus all, on a host with the NVIDIA driver and the NVIDIA Container Toolkit"
TMPFS = "docker run --tmpfs /tmp:exec"


def problem(verb: str, stack: str, facts: Facts, temporary: str = TEMPORARY) -> str | None:
    """One line about the first thing that would stop `verb` in a container of this stack; None for none."""
    return next(_problems(verb, stack, facts, temporary), None)


def _problems(verb: str, stack: str, facts: Facts, temporary: str) -> Iterator[str]:
    kind, wanted = pins(stack).devices, Wanted(stack=stack)
    if verb in LOOKING:
        yield from _unwritable(temporary)
        return
    if verb in ("demo", "study") and kind == "npu":
        yield (
            f"the {verb} computes on CPUs or a GPU, and this image is for {stack}: use the cpu image or the cuda13 "
            "image, or smoke and train here"
        )
    yield from _errors(gathered, facts, wanted)
    if kind == "npu":
        yield from _without_npus(facts.devices)
    if kind == "gpu" and not facts.devices.found:
        yield f"no NVIDIA GPU in this container ({facts.devices.problem}): {GPUS}"
    for check in (devices.present, versions.chip, system.shm):
        yield from _errors(check, facts, wanted)
    yield from _unwritable(temporary)
    yield from _noexec(temporary)


def _without_npus(found: Devices) -> Iterator[str]:
    """What a container lacks: the driver comes first, since nothing else can be asked without it."""
    missing = [
        what for what, there in ((f"{DRIVER}/version.info", found.driver), ("npu-smi", _has_tool(found))) if not there
    ]
    if missing:
        yield f"no Ascend driver in this container ({' and '.join(missing)} missing): {NPU_DRIVER}"
    if not any(name.removeprefix("davinci").isdecimal() for name in found.files):
        yield f"no NPU is mapped into this container (no /dev/davinci0 or another): {NPU_DEVICES}"


def _has_tool(found: Devices) -> bool:
    return not (found.problem or "").endswith("is not on PATH")


def _errors(check: Check, facts: Facts, wanted: Wanted) -> Iterator[str]:
    for finding in check(facts, wanted):
        if finding.level == "error":
            yield f"{finding.what}: {finding.fix}"


def _unwritable(folder: str) -> Iterator[str]:
    """Ray and torch write there, and Python itself."""
    if not os.access(folder, os.W_OK | os.X_OK):
        yield f"{folder} cannot be written by uid {os.getuid()}: {TMPFS}"


def _noexec(folder: str) -> Iterator[str]:
    """Torch and Triton load from there what they have compiled."""
    if os.statvfs(folder).f_flag & os.ST_NOEXEC:
        yield f"{folder} is mounted noexec, so what is compiled there cannot be loaded: {TMPFS}"


def gather(stack: str, environment: Mapping[str, str]) -> Facts:
    """What the checks above read; the rest of the facts are empty."""
    return Facts(
        devices=attempt(DEVICES[pins(stack).devices]),
        software=Software(platform.python_version(), chip_of_image=environment.get(CHIP_VARIABLE) or chip_of_build()),
        network=Network(),
        links=Links(),
        system=attempt(machine, [TEMPORARY]),
        leftovers=Leftovers(),
        ray=(),
        paths=(),
        kernels=Kernels(),
        variables=environment,
    )
