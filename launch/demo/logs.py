"""The few lines of a verl log that say what went wrong."""

from pathlib import Path

from launch.cause.cause import of_log
from launch.cause.exceptions import plain

SHOWN, LONGEST = 5, 300


def last_errors(log: Path) -> str:
    """The cause with the place where it stands, or the last lines and the log when none of them is an error."""
    if cause := of_log(log):
        return "\n".join(["the log says:", *cause.lines()])
    lines = [plain(line).text.strip() for line in log.read_text(errors="replace").splitlines()]
    shown = [line[:LONGEST] for line in lines if line][-SHOWN:]
    return "\n".join(["the log says:", *(f"  {line}" for line in shown), f"the whole log: {log}"])
