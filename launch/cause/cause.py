"""The cause of a failed run, as it is told: at most five lines, of which the first is the exception."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.cause.exceptions import Chain, Raised, exceptions, plain
from launch.cause.kinds import consequence, fix

LONGEST = 400  # characters of a line; CUDA's out-of-memory message has 380
STEP = re.compile(r"(?:^|\s)step:\d+ - ")  # verl's console logger: what was wrong before a whole step did not end it


@dataclass(frozen=True)
class Cause:
    """Why a run failed.

    Attributes:
        error: `Type: message`.
        where: the process, its host, its pid, as far as they are known.
        log: the file, with the line where it stands there.
        fix: what to do; empty where nobody knows.
    """

    error: str
    where: str = ""
    log: str = ""
    fix: str = ""

    def lines(self) -> list[str]:
        """For people; what is not known has no line."""
        told = (("cause", self.error), ("where", self.where), ("log", self.log), ("fix", self.fix))
        return [f"{name}: {' '.join(text.split())[:LONGEST]}" for name, text in told if text]


def telling(chain: Chain) -> Raised:
    """Of exceptions that were raised one while the other was handled: the last one that is no mere consequence."""
    return next((one for one in reversed(chain) if not consequence(one.text)), chain[-1])


def primary(found: Iterable[Raised]) -> Raised | None:
    """The first one with a traceback that is no mere consequence."""
    return next((one for one in found if not one.bare and not consequence(one.text)), None)


def first(lines: Sequence[str]) -> Raised | None:
    """What ended the process whose log this is: of its own last exception if that tells it, else of those before.

    Other processes' tracebacks may be of what they have handled; the last one of the log's own process was not.
    """
    chains = since_last_step(lines)
    found = [telling(chain) for chain in chains]
    own = [telling(chain) for chain in chains if writer(lines[chain[-1].line - 1]) == () and not chain[-1].bare]
    if own and not consequence(own[-1].text):
        return own[-1]
    return primary(found) or next(iter(own), None) or next(iter(found), None)


def since_last_step(lines: Sequence[str]) -> list[Chain]:
    """The exceptions after the last step that was whole."""
    begin = next((number for number in range(len(lines), 0, -1) if STEP.search(lines[number - 1])), 0)
    return exceptions([*[""] * begin, *lines[begin:]])


def writer(line: str) -> tuple[int, ...]:
    """The processes that a line of a log names as its writers; none for the one whose log it is."""
    return plain(line).pids


def of_log(log: Path) -> Cause | None:
    """The cause in one log that holds everything; None when no line of it looks like an exception."""
    raised = first(log.read_text(errors="replace").splitlines())
    if raised is None:
        return None
    host = raised.ip or ""
    pid = f"pid {raised.pid}" if raised.pid else ""
    where = ", ".join(filter(None, (raised.process, host, pid)))
    return Cause(raised.text, where, f"{log}:{raised.line}", fix(raised.text) or "")
