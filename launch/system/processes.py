"""Subprocesses: run a program with a timeout, and end exactly the processes that a training run has started.

Ray's daemons leave the process group and may outlive their parent, so every descendant is remembered when seen, and
so is the shared memory it maps: vLLM's stays in /dev/shm when Ray kills the engine at the end of a run, and verl's if
Python's resource tracker, which else removes it, is killed too. A run of `train` besides marks its processes: each has
the run's id in its environment, wherever it went since.
"""

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import psutil

OPEN_FILES = 32768  # Ray and verl keep thousands of sockets and shared files open
GRACE_SECONDS = 10
LATE_ROUNDS = 5
MARK = "ASCEND_QUANT_RUN"  # the variable that holds the run's id
SEGMENT = re.compile(r"/dev/shm/(?:psm|verl_weights)_\w+")  # names that Python's SharedMemory makes up, and verl's


def piped(command: Sequence[str]) -> subprocess.Popen[str]:
    """Start a child to talk with, in a session of its own: Ctrl-C is for this process, which ends all in order."""
    return subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class Answer(NamedTuple):
    """Output of a program; `problem` where it is not there, failed, or was too slow."""

    output: str
    problem: str | None = None


def ask(command: Sequence[str], seconds: float = 30) -> Answer:
    """Run a command without a terminal; its output is kept when it fails, too.

    One that goes on for longer than `seconds` is killed with all that it has started, and is not waited for: one that
    waits for a broken driver cannot be killed.
    """
    program = shutil.which(command[0])
    if program is None:
        return Answer("", f"{command[0]} is not on PATH")
    said = " ".join(command)
    try:
        child = subprocess.Popen(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as failure:
        return Answer("", f"{said} cannot be run: {failure}")
    try:
        output, errors = child.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.stdout.close()
        child.stderr.close()
        return Answer("", f"{said} did not answer within {seconds:g} s")
    if child.returncode:
        last = (errors.strip() or output.strip() or "it printed nothing").splitlines()[-1]
        return Answer(output, f"{said} ended with {child.returncode}: {last}")
    return Answer(output)


class ProcessTree:
    """Process with all its descendants, also those whose parent has gone."""

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

    def end(self) -> None:
        """Ask every member that still runs to stop, then insist, then remove the shared memory they left."""
        self.look()
        end_all([process for process in self.members if process.is_running()])
        remove(self.segments)


def end_as_after_ctrl_c() -> None:
    """Let SIGTERM and SIGHUP end this process as Ctrl-C does from now on: with what it has started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)


def of_run(run: str) -> list[psutil.Process]:
    """List this machine's processes that carry the run's id; not this one, nor those it descends from."""
    this = psutil.Process()
    own = {this, *this.parents()}
    return [process for process in psutil.process_iter() if process not in own and mark(process) == run]


def mark(process: psutil.Process) -> str | None:
    """Return the id of the run that started a process; None when it has ended, is another user's, or is of no run."""
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def end_run(run: str) -> int:
    """End the processes of a run, the shared memory they have mapped too; returns how many there were.

    One that is being ended may have started another since, which nobody asked yet: that one is ended at once.
    """
    found = of_run(run)
    segments = {segment for process in found for segment in mapped_segments(process.pid)}
    end_all(found)
    for _ in range(LATE_ROUNDS):
        late = [process for process in of_run(run) if not is_zombie(process)]
        if not late:
            break
        signal_each(late, psutil.Process.kill)
        still_running(late, GRACE_SECONDS)
    remove(segments)
    return len(found)


def end_all(processes: list[psutil.Process], seconds: float = GRACE_SECONDS) -> None:
    """Ask each to stop, and insist after so many seconds."""
    signal_each(processes, psutil.Process.terminate)
    stubborn = still_running(processes, seconds)
    signal_each(stubborn, psutil.Process.kill)
    still_running(stubborn, GRACE_SECONDS)


def still_running(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    """Wait for them, so long at most; a process that only waits for its parent to ask how it ended has ended."""
    deadline = time.monotonic() + seconds
    while processes and time.monotonic() < deadline:
        _, processes = psutil.wait_procs(processes, timeout=0.1)
        processes = [process for process in processes if not is_zombie(process)]
    return processes


def is_zombie(process: psutil.Process) -> bool:
    """Return whether it has ended and its parent has not noticed."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def remove(segments: Iterable[Path]) -> None:
    """Remove shared memory whose processes have ended."""
    for segment in segments:
        segment.unlink(missing_ok=True)


def mapped_segments(pid: int) -> set[Path]:
    """Return the shared-memory files that a process has mapped; none when it has ended."""
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
