"""Exit statuses of commands, and the helper that exits with a message instead of a traceback."""

import sys
from typing import NoReturn

DONE = 0
FAILED = 1  # the command failed or completed only in part
WRONG_USE = 2  # wrong options, files or machine; nothing was tried
ABOVE = 3  # mismatch: the KL is above --fail-above
NOT_REACHED = 3  # benchmarks.tune: time ran out; the next run continues
NOT_FORMED = 3  # train: the cluster did not form, or a host could not take part
INTERRUPTED = 130  # Ctrl-C, by the shell's convention


def fail(message: str, status: int) -> NoReturn:
    """End the command with a message on stderr."""
    print(message, file=sys.stderr)
    raise SystemExit(status)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
