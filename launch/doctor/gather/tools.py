"""Asking another program, with a time limit: its output, or one line that says why there is none."""

import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple


class Answer(NamedTuple):
    """What a program printed; `problem` where it is not there, failed, or was too slow."""

    output: str
    problem: str | None = None


def ask(command: Sequence[str], seconds: float = 30) -> Answer:
    """Run a command without a terminal; its output is kept when it fails, too."""
    program = shutil.which(command[0])
    if program is None:
        return Answer("", f"{command[0]} is not on PATH")
    try:
        done = subprocess.run(
            [program, *command[1:]], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return Answer("", f"{' '.join(command)} did not answer within {seconds:g} s")
    except OSError as failure:
        return Answer("", f"{' '.join(command)} cannot be run: {failure}")
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        return Answer(done.stdout, f"{' '.join(command)} ended with {done.returncode}: {said}")
    return Answer(done.stdout)
