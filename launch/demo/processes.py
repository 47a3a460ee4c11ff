"""The processes that one training run starts: what memory they use together, and ending exactly them.

Ray's daemons leave the process group and may outlive their parent, so every descendant is remembered when seen, and
so is the shared memory it maps: vLLM's stays in /dev/shm when Ray kills the engine at the end of a run.
"""

import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

GRACE_SECONDS = 10
SEGMENT = re.compile(r"/dev/shm/psm_\w+")  # the names Python's SharedMemory makes up


class ProcessTree:
    """A process and all its descendants, also those whose parent has gone."""

    def __init__(self, root: int) -> None:
        self.members: set[psutil.Process] = {psutil.Process(root)}
        self.segments: set[Path] = set()

    def look(self) -> None:
        """Add the descendants that have come since the last look."""
        children: dict[int, list[psutil.Process]] = {}
        for process in psutil.process_iter(["ppid"]):
            children.setdefault(process.info["ppid"], []).append(process)
        new = [process for process in self.members if process.is_running()]
        while new:
            new = [child for parent in new for child in children.get(parent.pid, ()) if child not in self.members]
            self.members.update(new)
        for process in self.members:
            self.segments |= mapped_segments(process.pid) if process.is_running() else set()

    def memory_bytes(self) -> int:
        """Memory of all members, with pages that several share counted once (PSS)."""
        return sum(memory_bytes(process) for process in self.members)

    def end(self) -> None:
        """Ask every member that still runs to stop, then insist, then remove the shared memory they left."""
        self.look()
        running = [process for process in self.members if process.is_running()]
        signal_each(running, psutil.Process.terminate)
        _, stubborn = psutil.wait_procs(running, timeout=GRACE_SECONDS)
        signal_each(stubborn, psutil.Process.kill)
        psutil.wait_procs(stubborn, timeout=GRACE_SECONDS)
        for segment in self.segments:
            segment.unlink(missing_ok=True)


def own_memory_bytes() -> int:
    """Memory of this process."""
    return memory_bytes(psutil.Process(os.getpid()))


def memory_bytes(process: psutil.Process) -> int:
    """The process's proportional share of memory; 0 when it has ended."""
    try:
        return process.memory_full_info().pss
    except psutil.Error:
        return 0


def mapped_segments(pid: int) -> set[Path]:
    """The shared-memory files that a process has mapped; none when it has ended."""
    try:
        return {Path(name) for name in SEGMENT.findall(Path(f"/proc/{pid}/maps").read_text())}
    except OSError:
        return set()


def signal_each(processes: Iterable[psutil.Process], send: Callable[[psutil.Process], None]) -> None:
    """Send a signal, not minding those that have just ended."""
    for process in processes:
        try:
            send(process)
        except psutil.NoSuchProcess:
            continue
