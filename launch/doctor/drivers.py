"""NPUs and GPUs as their drivers report them: by npu-smi, and by NVML (nvidia-ml-py), the library behind nvidia-smi.

npu-smi's output differs between products. `npu-smi info` prints a table with two rows per die, then a table of
processes. On A2 a die has the name of its chip (910B3) and the second row begins with the chip's number; on A3 the name
is Ascend910, an NPU has two dies, and the second row also has their physical number. The formats are from
vllm-project/vllm-ascend issues 2534, 2035 and 6245; this has not been run on hardware.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from launch.plan.start import NPU_SMI
from launch.system.processes import ask
from launch.system.software import product

pynvml: Any = import_module("pynvml") if find_spec("pynvml") else None  # stacks without GPUs lack it
DEVICE_FILES = ("davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc", "nvidia[0-9]*")
NOT_ON_PATH = "exists, but its folder is not on PATH"
MIB = 1 << 20
DIE = re.compile(
    r"^ *\| *(?P<npu>\d+) +(?P<name>\S+) *\| *(?P<health>[^|]*?) *\|.*\n *"  # 0     910B3 | OK | power, huge pages
    r"\| *\d+ *(?P<physical>\d*) *\|[^|]*\|(?P<memory>[^|]*)\| *$",  # 0 (and the physical number) | bus | memory, HBM
    re.MULTILINE,
)
MEMORY = re.compile(r"(\d+) */ *(\d+) *$")  # in the last column: HBM, or all memory


@dataclass(frozen=True)
class Device:
    """An NPU die or a GPU."""

    number: int  # the driver's number
    name: str
    health: str  # as reported by the driver; OK if healthy
    used_mib: int | None  # None if the driver does not report it
    total_mib: int | None


@dataclass(frozen=True)
class Devices:
    """Devices as reported by their driver."""

    tool: str | None = None  # npu-smi or nvidia-smi; None if the stack has no devices
    problem: str | None = None  # why no device is listed
    driver: str | None = None
    found: tuple[Device, ...] = ()

    @property
    def numbers(self) -> list[int]:
        """The numbers of the devices, in ascending order."""
        return sorted(device.number for device in self.found)

    @property
    def chip(self) -> str | None:
        """The name of the first device, such as 910B3 or NVIDIA H200."""
        return self.found[0].name if self.found else None

    @property
    def product(self) -> str | None:
        """A2 or A3; None for others."""
        return "A3" if self.chip == "Ascend910" else product(f"ascend{self.chip}")


def devices(kind: str) -> Devices:
    """Return the devices of the kind that a stack uses: `npu`, `gpu` or `none`."""
    if kind == "none":
        return Devices()
    return npus() if kind == "npu" else gpus()


def device_files(folder: Path) -> list[str]:
    """Return the names of the files in /dev through which processes access NPUs and GPUs."""
    return sorted(path.name for pattern in DEVICE_FILES for path in folder.glob(pattern))


def npus(root: Path = Path("/")) -> Devices:
    """Return the NPUs of this host, or why they cannot be listed; npu-smi is looked up below `root`."""
    answer = ask(["npu-smi", "info"])
    if answer.problem:
        return Devices("npu-smi", off_path(root) or answer.problem)
    table, _, _ = answer.output.partition("Process id")
    version, dies = re.search(r"Version:\s*(\S+)", table), tuple(parse_dies(table))
    problem = None if dies else f"npu-smi info lists no device: {answer.output.strip()[:200]!r}"
    return Devices("npu-smi", problem, version and version[1], dies)


def off_path(root: Path) -> str | None:
    """Return the path of npu-smi if it is not on PATH (/usr/local/sbin is only on root's); otherwise None."""
    there = [file for file in NPU_SMI if (root / file.lstrip("/")).exists()]
    return f"{there[0]} {NOT_ON_PATH}" if there and shutil.which("npu-smi") is None else None


def parse_dies(table: str) -> Iterator[Device]:
    """Parse the dies of npu-smi's first table; it prints NA, or 0 / 0, where it does not know a die's memory."""
    for die in DIE.finditer(table):
        memory = MEMORY.search(die["memory"])
        used, total = (int(memory[1]), int(memory[2])) if memory and int(memory[2]) else (None, None)
        yield Device(int(die["physical"] or die["npu"]), die["name"], die["health"], used, total)


def gpus() -> Devices:
    """Return the GPUs of this host, or why they cannot be listed; a GPU that the driver cannot query has its error."""
    if pynvml is None:
        return Devices("nvidia-smi", "nvidia-ml-py is not installed here: is this the Python of the stack?")
    try:
        pynvml.nvmlInit()
        found = tuple(_gpu(number) for number in range(pynvml.nvmlDeviceGetCount()))
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return Devices("nvidia-smi", f"NVML: {error}")
    return Devices("nvidia-smi", None if found else "NVML lists no device", driver, found)


def _gpu(number: int) -> Device:
    name = "GPU"
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = _if_supported(pynvml.nvmlDeviceGetMemoryInfo, handle)
        kinds = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        errors = _if_supported(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
    except pynvml.NVMLError as error:
        return Device(number, name, str(error), None, None)
    used, total = (memory.used // MIB, memory.total // MIB) if memory else (None, None)
    return Device(number, name, f"{errors} uncorrected memory errors" if errors else "OK", used, total)


def _if_supported(query: Callable[..., Any], *given: Any) -> Any:
    """Return NVML's result; None if the GPU does not support the query."""
    try:
        return query(*given)
    except pynvml.NVMLError_NotSupported:
        return None
