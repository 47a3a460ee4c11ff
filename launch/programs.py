"""Asking another program, with a limit of time: its output, or one line that says why there is none."""

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple


class Answer(NamedTuple):
    """What a program printed; `problem` where it is not there, failed, or was too slow."""

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
        last = (errors.strip() or output.strip() or "it said nothing").splitlines()[-1]
        return Answer(output, f"{said} ended with {child.returncode}: {last}")
    return Answer(output)
