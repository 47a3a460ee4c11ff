"""The machine: limits, memory, disks, clock."""

import ctypes
import resource
import shutil
from collections.abc import Sequence
from pathlib import Path

import psutil

from launch.doctor.facts import System

CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1
TIMEX_BYTES = 512  # more than any kernel's struct timex
NOT_SYNCHRONIZED = 5  # TIME_ERROR of adjtimex(2)


def system(folders: Sequence[str], root: Path = Path("/")) -> System:
    """The machine as it is now; free space where each of `folders` is, or would be made."""
    memory = psutil.virtual_memory()
    total = min([memory.total, *cgroup_limits(root)])
    shared = shutil.disk_usage("/dev/shm")
    return System(
        open_files=limits(resource.RLIMIT_NOFILE),
        locked_memory=limits(resource.RLIMIT_MEMLOCK),
        shared_memory=(shared.total, shared.free),
        disks={folder: shutil.disk_usage(existing(Path(folder))).free for folder in folders},
        memory=(total, min(memory.available, total)),
        synchronized=clock_is_synchronized(),
        huge_pages=huge_pages((root / "proc" / "meminfo").read_text()),
    )


def limits(which: int) -> tuple[int | None, int | None]:
    """A limit of this process, soft and hard; None is unlimited."""
    soft, hard = (None if one == resource.RLIM_INFINITY else one for one in resource.getrlimit(which))
    return soft, hard


def cgroup_limits(root: Path) -> list[int]:
    """The memory that this container may use, in bytes; nothing outside one."""
    texts = [(root / file).read_text().strip() for file in CGROUP_LIMITS if (root / file).is_file()]
    return [int(text) for text in texts if text.isdecimal()]


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    return folder if folder.exists() else existing(folder.absolute().parent)


def clock_is_synchronized() -> bool | None:
    """Whether the kernel says that a time server disciplines its clock; None where it may not be asked."""
    library = ctypes.CDLL(None)
    state = library.adjtimex(ctypes.create_string_buffer(TIMEX_BYTES))  # modes 0: asks, sets nothing
    return None if state < 0 else state != NOT_SYNCHRONIZED


def huge_pages(meminfo: str) -> tuple[int, int]:
    """Bytes that are set aside for huge pages, and how many of them are not used."""
    fields = {name: int(rest.split()[0]) for name, _, rest in (line.partition(":") for line in meminfo.splitlines())}
    size = fields.get("Hugepagesize", 0) * 1024
    return fields.get("HugePages_Total", 0) * size, fields.get("HugePages_Free", 0) * size
