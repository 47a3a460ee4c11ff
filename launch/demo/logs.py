"""The few lines of a verl log that say what went wrong."""

import re
from pathlib import Path

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
RAY_PREFIX = re.compile(r"^\([^)]*pid=\d+[^)]*\)\s*")
ERROR = re.compile(r"^\s*(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Exit|Interrupt)\b.*")
SHOWN = 5


def last_errors(log: Path) -> str:
    """The last distinct error lines, or the last lines when none looks like an error, and where to read on."""
    lines = [RAY_PREFIX.sub("", COLOUR.sub("", line)).strip() for line in log.read_text(errors="replace").splitlines()]
    lines = [line for line in lines if line]
    errors = list(dict.fromkeys(line for line in lines if ERROR.match(line)))
    shown = (errors or lines)[-SHOWN:]
    return "\n".join(["the log says:", *(f"  {line[:300]}" for line in shown), f"the whole log: {log}"])
