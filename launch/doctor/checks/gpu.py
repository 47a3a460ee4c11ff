"""GPUs, from nvidia-smi's queries, which are made for programs: values with commas between, without units.

The fields are in `nvidia-smi --help-query-gpu`; a field that a GPU does not have is [N/A], and one that a sick GPU does
not tell is what the driver has to say of it: [GPU requires reset], [GPU is lost], [Unknown Error].
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from launch.doctor.facts import Device, Devices, Holder
from launch.programs import ask

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
NUMBER = re.compile("[0-9]{1,9}")
MEBIBYTES = re.compile("([0-9]{1,9})(?: MiB)?")
NOT_THERE = ("N/A", "Not Supported")  # what a GPU does not have
NO_PROCESSES = "No running processes found"


def gpus() -> Devices:
    """The GPUs of this host, or why they cannot be listed."""
    answer = ask(["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", FORMAT])
    if answer.problem:
        return Devices("nvidia-smi", answer.problem)
    devices, unread = parse_gpus(answer.output)
    if not devices:
        return Devices("nvidia-smi", f"nvidia-smi lists no device: {answer.output.strip()[:200]!r}")
    processes = ask(["nvidia-smi", f"--query-compute-apps={','.join(PROCESS_FIELDS)}", FORMAT])
    numbers = {gpu.uuid: gpu.device.number for gpu in devices}
    holders, others = parse_processes(processes.output, numbers)
    return Devices(
        tool="nvidia-smi",
        problem=processes.problem or _problem([*unread, *others]),
        driver=next((gpu.driver for gpu in devices if gpu.driver), None),
        found=tuple(gpu.device for gpu in devices),
        holders=tuple(holders),
    )


class Gpu(NamedTuple):
    """A line of nvidia-smi's; `driver` is the version, None where that is not told."""

    uuid: str
    device: Device
    driver: str | None


def parse_gpus(output: str) -> tuple[list[Gpu], list[str]]:
    """The GPUs; and the lines that name none."""
    devices, unread = [], []
    for line, cells in _rows(output):
        if len(cells) < len(GPU_FIELDS) or not NUMBER.fullmatch(cells[0]):
            unread.append(line)
            continue
        number, uuid, *name, driver, used, total, errors = cells  # a name may have commas
        health = _health([*name, driver, used, total], errors)
        device = Device(int(number), ", ".join(name), health, _mebibytes(used), _mebibytes(total))
        devices.append(Gpu(uuid, device, None if _bracketed(driver) else driver))
    return devices, unread


def _health(values: list[str], errors: str) -> str:
    """What the driver says in place of a value; else whether memory errors were counted."""
    said = (_bracketed(value) for value in [*values, errors])
    if ill := next((one for one in said if one is not None and one not in NOT_THERE), None):
        return ill
    return "OK" if errors == "0" or _bracketed(errors) else f"{errors} uncorrected memory errors"


def _bracketed(value: str) -> str | None:
    """What stands in brackets in place of a value."""
    return value[1:-1] if value.startswith("[") and value.endswith("]") else None


def _mebibytes(value: str) -> int | None:
    found = MEBIBYTES.fullmatch(value)
    return int(found[1]) if found else None


def parse_processes(output: str, numbers: dict[str, int]) -> tuple[list[Holder], list[str]]:
    """The processes on the GPUs of these numbers, by uuid; and the lines that name none, as one on a part of a GPU."""
    holders, unread = [], []
    for line, cells in _rows(output):
        if len(cells) >= len(PROCESS_FIELDS) and cells[0] in numbers and NUMBER.fullmatch(cells[1]):
            uuid, pid, *name, used = cells
            holders.append(Holder(numbers[uuid], int(pid), ", ".join(name), _mebibytes(used) or 0))
        elif line != NO_PROCESSES:
            unread.append(line)
    return holders, unread


def _rows(output: str) -> Iterator[tuple[str, list[str]]]:
    """Each line that is not empty, and its cells."""
    for line in map(str.strip, output.splitlines()):
        if line:
            yield line, [cell.strip() for cell in line.split(",")]


def _problem(unread: list[str]) -> str | None:
    if not unread:
        return None
    more = f" and {len(unread) - 1} more lines" if len(unread) > 1 else ""
    return f"nvidia-smi printed what names no device and no process of one: {unread[0][:200]!r}{more}"
