"""Subprocesses: running a program with a timeout, and ending exactly the processes that a training run has started.

A run of `train` marks its processes with the run's id in their environment.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import psutil

from ascend_quant.processes.tree import GRACE_SECONDS, end_all, mapped_segments, remove, signal_each, still_running

OPEN_FILES = 32768  # Ray and verl keep thousands of sockets and shared files open
LATE_ROUNDS = 5
MARK = "ASCEND_QUANT_RUN"  # variable with the run's id


def piped(command: Sequence[str], stdin: int = subprocess.PIPE) -> subprocess.Popen[str]:
    """Start a child with pipes, in its own session: Ctrl-C reaches only this process, which ends the others."""
    return subprocess.Popen(
        command,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )


class Answer(NamedTuple):
    """The output of a program; `problem` if it does not exist, failed, or timed out."""

    output: str
    problem: str | None = None


def ask(command: Sequence[str], seconds: float = 30) -> Answer:
    """Run a command without a terminal; its output is returned even if it fails.

    After `seconds` the command is killed with all its descendants, without waiting for it, since a process that waits
    for a broken driver cannot be killed.
    """
    program = shutil.which(command[0])
    if program is None:
        return Answer("", f"{command[0]} is not on PATH")
    said = " ".join(command)
    try:
        child = piped([program, *command[1:]], stdin=subprocess.DEVNULL)
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


def of_run(run: str) -> list[psutil.Process]:
    """Return this machine's processes with the run's id, without this process and its ancestors."""
    this = psutil.Process()
    own = {this, *this.parents()}
    return [process for process in psutil.process_iter() if process not in own and mark(process) == run]


def mark(process: psutil.Process) -> str | None:
    """Return the id of the run that started a process; None if it has ended, or belongs to no run of this user."""
    try:
        return process.environ().get(MARK)
    except (psutil.Error, OSError):
        return None


def end_run(run: str) -> int:
    """End the processes of a run and remove their shared memory; return their number.

    A process that is being ended may start another one, which is killed at once.
    """
    found = of_run(run)
    segments = {segment for process in found for segment in mapped_segments(process.pid)}
    end_all(found)
    for _ in range(LATE_ROUNDS):
        if not (late := of_run(run)):  # a zombie has no environment, and so no mark
            break
        signal_each(late, psutil.Process.kill)
        still_running(late, GRACE_SECONDS)
    remove(segments)
    return len(found)
