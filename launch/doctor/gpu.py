"""GPUs, from nvidia-smi's queries, which are made for programs: values with commas between, without units.

The fields are in `nvidia-smi --help-query-gpu`; a field that a GPU does not have is [N/A], and one that a sick GPU does
not tell is what the driver has to say of it: [GPU requires reset], [GPU is lost], [Unknown Error].
"""

from launch.doctor.facts import Device, Devices, Holder
from launch.processes import ask

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
NOT_THERE = ("N/A", "Not Supported")  # what a GPU does not have


def gpus() -> Devices:
    """The GPUs of this host, or why they cannot be listed."""
    listed = ask(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", FORMAT])
    if listed.problem:
        return Devices("nvidia-smi", listed.problem)
    rows = _rows(listed.output)
    gpus = [row for row in rows if len(row) == len(GPU_FIELDS) and row[0].isdecimal()]
    if not gpus:
        return Devices("nvidia-smi", f"nvidia-smi lists no device: {listed.output.strip()[:200]!r}")
    unread = next((row for row in rows if row not in gpus), None)
    processes = ask(["nvidia-smi", f"--query-compute-apps={','.join(PROCESS_FIELDS)}", FORMAT])
    drivers = [row[3] for row in gpus if _said(row[3]) is None]
    return Devices(
        tool="nvidia-smi",
        problem=f"nvidia-smi names no device by {', '.join(unread)[:200]!r}" if unread else processes.problem,
        driver=drivers[0] if drivers else None,
        found=tuple(map(_device, gpus)),
        holders=tuple(_holders(processes.output, {row[1]: int(row[0]) for row in gpus})),
    )


def _rows(output: str) -> list[list[str]]:
    """The cells of each line that is not empty."""
    return [[cell.strip() for cell in line.split(",")] for line in output.splitlines() if line.strip()]


def _device(row: list[str]) -> Device:
    number, _, name, _, used, total, _ = row
    return Device(int(number), name, _health(row), _mebibytes(used), _mebibytes(total))


def _health(row: list[str]) -> str:
    """What the driver says in place of a value; else whether memory errors were counted."""
    said = [_said(cell) for cell in row]
    if ill := [one for one in said if one is not None and one not in NOT_THERE]:
        return ill[0]
    return "OK" if row[-1] == "0" or said[-1] else f"{row[-1]} uncorrected memory errors"


def _said(cell: str) -> str | None:
    """What stands in brackets in place of a value."""
    return cell[1:-1] if cell.startswith("[") and cell.endswith("]") else None


def _mebibytes(cell: str) -> int | None:
    number = cell.removesuffix(" MiB")
    return int(number) if number.isdecimal() else None


def _holders(output: str, numbers: dict[str, int]) -> list[Holder]:
    """The processes on the GPUs of these numbers, by uuid; those on a part of a GPU are left out."""
    rows = [row for row in _rows(output) if len(row) == len(PROCESS_FIELDS) and row[0] in numbers]
    return [
        Holder(numbers[uuid], int(pid), name, _mebibytes(used) or 0)
        for uuid, pid, name, used in rows
        if pid.isdecimal()
    ]
