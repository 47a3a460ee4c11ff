"""GPUs, from nvidia-smi's queries, which are made for programs: values with commas between, without units.

The fields are in `nvidia-smi --help-query-gpu`; a field that a GPU does not have is [N/A].
"""

from launch.doctor.facts import Device, Devices, Holder
from launch.doctor.gather.tools import ask

GPU_FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.used",
    "memory.total",
    "ecc.errors.uncorrected.volatile.total",
)
PROCESS_FIELDS = ("gpu_uuid", "pid", "process_name", "used_memory")
FORMAT = "--format=csv,noheader,nounits"


def gpus() -> Devices:
    """The GPUs of this host, or why they cannot be listed."""
    answer = ask(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", FORMAT])
    if answer.problem:
        return Devices("nvidia-smi", answer.problem)
    rows = _rows(answer.output)
    if not rows:
        return Devices("nvidia-smi", "nvidia-smi lists no device")
    numbers = {row[1]: int(row[0]) for row in rows}
    processes = ask(["nvidia-smi", f"--query-compute-apps={','.join(PROCESS_FIELDS)}", FORMAT])
    return Devices(
        tool="nvidia-smi",
        problem=processes.problem,
        driver=rows[0][3],
        found=tuple(_device(row) for row in rows),
        holders=tuple(_holder(row, numbers) for row in _rows(processes.output)),
    )


def _rows(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]


def _device(row: list[str]) -> Device:
    number, _, name, _, used, total, errors = row
    health = "OK" if errors in ("0", "[N/A]") else f"{errors} uncorrected memory errors"
    return Device(int(number), name, health, int(used), int(total))


def _holder(row: list[str], numbers: dict[str, int]) -> Holder:
    uuid, pid, name, mib = row
    return Holder(numbers[uuid], int(pid), name, int(mib) if mib.isdecimal() else 0)
