"""This host's memory, as far as its processes may use it."""

import re
from pathlib import Path

import psutil

GIB = 1 << 30
CGROUP_LIMITS = ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes")  # version 2, version 1


def memory_here(root: Path = Path("/")) -> tuple[int, int]:
    """Return total and available bytes of memory, in a container at most its cgroup's limit, looked up in `root`."""
    memory = psutil.virtual_memory()
    texts = [(root / file).read_text().strip() for file in CGROUP_LIMITS if (root / file).is_file()]
    total = min([memory.total, *(int(text) for text in texts if re.fullmatch("[0-9]+", text))])
    return total, min(memory.available, total)
