"""Asking another program, with limits of time and of size: its output, or one line that says why there is none."""

import os
import selectors
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

MOST_BYTES = 4 << 20
CHUNK = 1 << 16
END_SECONDS = 2


class Answer(NamedTuple):
    """What a program printed; `problem` where it is not there, failed, was too slow, or printed too much."""

    output: str
    problem: str | None = None


class _NoAnswer(Exception):
    """Why a program was ended."""


def ask(command: Sequence[str], seconds: float = 30) -> Answer:
    """Run a command without a terminal; its output is kept when it fails, too.

    One that prints more than MOST_BYTES, or goes on for longer than `seconds`, is killed with all that it has started.
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
            start_new_session=True,
        )
    except OSError as failure:
        return Answer("", f"{said} cannot be run: {failure}")
    try:
        output, errors = _read(child, time.monotonic() + seconds)
    except TimeoutError:
        return Answer("", f"{said} did not answer within {seconds:g} s")
    except _NoAnswer as why:
        return Answer("", f"{said} {why}")
    finally:
        _end(child)
    if child.returncode:
        last = (errors.strip() or output.strip() or "it said nothing").splitlines()[-1]
        return Answer(output, f"{said} ended with {child.returncode}: {last}")
    return Answer(output)


def _read(child: subprocess.Popen[bytes], end: float) -> tuple[str, str]:
    """What it prints until it ends.

    Raises:
        TimeoutError: it goes on.
        _NoAnswer: it prints too much.
    """
    texts = {child.stdout: bytearray(), child.stderr: bytearray()}
    with selectors.DefaultSelector() as streams:
        for stream in texts:
            streams.register(stream, selectors.EVENT_READ)
        while streams.get_map():
            left = end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            for ready, _ in streams.select(left):
                chunk = os.read(ready.fd, CHUNK)
                texts[ready.fileobj] += chunk
                if not chunk:
                    streams.unregister(ready.fileobj)
                elif len(texts[ready.fileobj]) > MOST_BYTES:
                    raise _NoAnswer(f"printed more than {MOST_BYTES >> 20} MiB")
    try:
        child.wait(max(end - time.monotonic(), 0))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None
    output, errors = (text.decode(errors="replace") for text in texts.values())
    return output, errors


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill it and what it has started. One that waits for a broken driver cannot be killed: nobody waits for it."""
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            child.wait(END_SECONDS)
    child.stdout.close()
    child.stderr.close()
