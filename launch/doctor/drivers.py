"""NPUs and GPUs as their drivers report them: by npu-smi, and by NVML (nvidia-ml-py), the library behind nvidia-smi.

npu-smi's output differs between products. `npu-smi info` prints a table with two rows per die, then a table of
processes. On A2 a die has the name of its chip (910B3) and the second row begins with the chip's number; on A3 the name
is Ascend910, an NPU has two dies, and the second row also has their physical number. `npu-smi info -t board` shows the
SoC: on A2 as Chip Type and Chip Name (Ascend 910B3), on A3 as Chip Name and NPU Name (Ascend910, 9392). The formats are
from vllm-project/vllm-ascend issues 2534, 2035 and 6245 and its setup.py; this has not been run on hardware.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.plan.start import NPU_SMI
from launch.system.processes import ask

try:
    import pynvml
except ImportError:  # stacks without GPUs lack it
    pynvml = None

ACCELERATORS = ("davinci[0-9]*", "nvidia[0-9]*")
DEVICE_FILES = ("davinci[0-9]*", "davinci_manager", "devmm_svm", "hisi_hdc")
NOT_ON_PATH = "exists, but its folder is not on PATH"
MIB = 1 << 20
NUMBER = re.compile("[0-9]{1,9}")
MEMORY = re.compile(r"(?<![0-9])([0-9]{1,9}) {0,20}/ {0,20}([0-9]{1,9})$")  # in the last column: HBM, or all memory


@dataclass(frozen=True)
class Device:
    """An NPU die or a GPU."""

    number: int  # the driver's number
    name: str
    health: str  # as reported by the driver; OK if healthy
    used_mib: int | None  # None if the driver does not report it
    total_mib: int | None


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a device; `pid` is the host's, even in a container."""

    device: int
    pid: int
    name: str
    mib: int


@dataclass(frozen=True)
class Devices:
    """Devices as reported by their driver."""

    tool: str | None = None  # npu-smi or NVML; None if the stack has no devices
    problem: str | None = None  # why the tool failed, or its output if that lists no device
    driver: str | None = None
    chip: str | None = None  # the SoC, such as ascend910b3 or ascend910_9392; None if unknown
    found: tuple[Device, ...] = ()
    holders: tuple[Holder, ...] = ()
    files: tuple[str, ...] = ()  # in /dev; on stack cpu those of NPUs or GPUs that it does not use

    @property
    def numbers(self) -> list[int]:
        """The numbers of the devices, in ascending order."""
        return sorted(device.number for device in self.found)


def devices(kind: str) -> Devices:
    """Return the devices of the kind that a stack uses: `npu`, `gpu` or `none`."""
    if kind == "none":
        return Devices(files=device_files(Path("/dev"), ACCELERATORS))
    return npus() if kind == "npu" else gpus()


def npus(root: Path = Path("/")) -> Devices:
    """Return the NPUs of this host, or why they cannot be listed; files are looked up below `root`."""
    files = device_files(root / "dev")
    answer = ask(["npu-smi", "info"])
    if answer.problem:
        return Devices("npu-smi", off_path(root) or answer.problem, files=files)
    table, _, processes = answer.output.partition("Process id")
    version = re.search(r"Version:\s*(\S+)", table)
    driver, dies = version and version[1], parse_dies(table)
    if not dies:
        nothing = f"npu-smi info lists no device: {answer.output.strip()[:200]!r}"
        return Devices("npu-smi", nothing, driver, files=files)
    first, _ = next(iter(dies))
    board = ask(["npu-smi", "info", "-t", "board", "-i", str(first), "-c", "0"])
    holders = tuple(parse_processes(processes, dies))
    return Devices("npu-smi", board.problem, driver, chip(board.output), tuple(dies.values()), holders, files)


def off_path(root: Path) -> str | None:
    """Return the path of npu-smi if it is not on PATH (/usr/local/sbin is only on root's); otherwise None."""
    there = [file for file in NPU_SMI if (root / file.lstrip("/")).exists()]
    return f"{there[0]} {NOT_ON_PATH}" if there and shutil.which("npu-smi") is None else None


def parse_dies(table: str) -> dict[tuple[int, int], Device]:
    """Parse the dies of the first table, by NPU and chip in npu-smi's numbers."""
    dies, above = {}, None
    for cells in _rows(table):
        first = cells[0].split()
        if not NUMBER.fullmatch(first[-1]):  # 0     910B3 | OK | power, temperature, huge pages
            above = (int(first[0]), first[1], cells[1])
        elif above is not None:  # 0 (and the physical number) | bus | use, memory, HBM
            npu, name, health = above
            number = int(first[-1]) if len(first) > 1 else npu
            dies[npu, int(first[0])] = Device(number, name, health, *_memory(cells[2]))
            above = None
    return dies


def _memory(cell: str) -> tuple[int | None, int | None]:
    """Parse used and total MiB; None if the tool prints NA, or that there are none."""
    found = MEMORY.search(cell)
    return (int(found[1]), int(found[2])) if found and int(found[2]) else (None, None)


def parse_processes(table: str, dies: dict[tuple[int, int], Device]) -> list[Holder]:
    """Parse the processes of the second table; newer drivers add a column with the pid in the container."""
    holders = []
    for cells in _rows(table):
        place, pid = cells[0].split(), cells[1]
        if len(place) == 2 and len(cells) > 3 and all(map(NUMBER.fullmatch, (*place, pid))):
            npu, chip = map(int, place)
            number = dies[npu, chip].number if (npu, chip) in dies else npu
            used = int(cells[3]) if NUMBER.fullmatch(cells[3]) else 0
            holders.append(Holder(number, int(pid), cells[2], used))
    return holders


def _rows(table: str) -> list[list[str]]:
    """Return the cells of lines that begin with a number."""
    lines = [line.strip().strip("|") for line in table.splitlines() if line.lstrip().startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [cells for cells in rows if len(cells) >= 3 and NUMBER.fullmatch(cells[0].partition(" ")[0])]


def chip(board: str) -> str | None:
    """Return the SoC of an NPU, such as ascend910b3 or ascend910_9392; None if the tool does not report it."""
    lines = (line.partition(":") for line in board.splitlines())
    fields = {name.strip(): value.strip() for name, _, value in lines}
    name = fields.get("Chip Name")
    if not name:
        return None
    npu_name, kind = fields.get("NPU Name"), fields.get("Chip Type", "")
    return f"{name}_{npu_name}".lower() if npu_name else f"{kind}{name}".lower()


def device_files(folder: Path, patterns: Sequence[str] = DEVICE_FILES) -> tuple[str, ...]:
    """Return the files in /dev through which processes access the devices."""
    found = (path for pattern in patterns for path in folder.glob(pattern))
    return tuple(sorted(path.name for path in found))


def gpus() -> Devices:
    """Return the GPUs of this host, or why they cannot be listed; a GPU that the driver cannot query has its error."""
    if pynvml is None:
        return Devices("NVML", "nvidia-ml-py is not installed here: is this the Python of the stack?")
    try:
        pynvml.nvmlInit()
        found = [_gpu(number) for number in range(pynvml.nvmlDeviceGetCount())]
        driver = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return Devices("NVML", f"NVML: {error}")
    holders = tuple(holder for _, holding in found for holder in holding)
    problem = None if found else "NVML lists no device"
    return Devices("NVML", problem, driver, found=tuple(device for device, _ in found), holders=holders)


def _gpu(number: int) -> tuple[Device, list[Holder]]:
    """Return a GPU, with the processes that compute on it."""
    name = "GPU"
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(number)
        name = pynvml.nvmlDeviceGetName(handle)
        memory = _if_supported(pynvml.nvmlDeviceGetMemoryInfo, handle)
        kinds = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        errors = _if_supported(pynvml.nvmlDeviceGetTotalEccErrors, handle, *kinds)
        processes = _if_supported(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or []
    except pynvml.NVMLError as error:
        return Device(number, name, str(error), None, None), []
    used, total = (memory.used // MIB, memory.total // MIB) if memory else (None, None)
    health = f"{errors} uncorrected memory errors" if errors else "OK"
    holders = [Holder(number, one.pid, _name(one.pid), (one.usedGpuMemory or 0) // MIB) for one in processes]
    return Device(number, name, health, used, total), holders


def _if_supported(query: Callable[..., Any], *given: Any) -> Any:
    """Return NVML's result; None if the GPU does not support the query."""
    try:
        return query(*given)
    except pynvml.NVMLError_NotSupported:
        return None


def _name(pid: int) -> str:
    """Return a process's name; empty if the driver does not know it, such as outside of this container."""
    try:
        return pynvml.nvmlSystemGetProcessName(pid)
    except pynvml.NVMLError:
        return ""
