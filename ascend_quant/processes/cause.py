"""The cause of a failed run, from the end of its log: the exception, its process, and its line in the log.

Ray repeats a remote traceback below `ray::Actor.method() (pid=7, ip=..)`, and prefixes lines of other processes with
`(name pid=7, ip=..)`. An exception that only results from the end of another process is reported only if there is no
other.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

LONGEST = 400  # characters per line; CUDA's out-of-memory message has 380
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
WRITER = re.compile(r"\((?P<name>raylet|[^()]*? ?(?=pid=))(?:pid=(?P<pid>\d+))?(?:, ip=(?P<ip>[^()]+))?\) ?")
RECORD = re.compile(r"(?:ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")  # vLLM's logger
REMOTE = re.compile(r"ray::(?P<name>[^\s()]+)(?:\(\))? \(pid=(?P<pid>\d+), ip=(?P<ip>[^,)\s]+)")
TRACEBACK = "Traceback (most recent call last):"
RAISED = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*(?:: .*)?")
DEAD_ACTOR = re.compile(r"\s+(name|pid|ip): (.+)")  # in the lines below Ray's ActorDiedError
CRASHED = re.compile(  # as Python, Ray and our mains say
    r"Fatal Python error: .+|\*\*\* SIG[A-Z]+ .*|.*A worker died or was killed .*|wrong settings: .*"
)
STEP = re.compile(r"(?:^|\s)step:\d+ - ")  # verl's console logger: earlier errors did not end the run
CONSEQUENCE = re.compile(
    r"^(?:[\w.]*\.)?(?:\w*Actor\w*|WorkerCrashed|NodeDied|OwnerDied|ObjectLost|EngineDead|TaskCancelled|Cancelled)Error\b"
    r"|^(?:[\w.]*\.)?(?:EOF|BrokenPipe|Connection\w*|Dist(?:Backend|Network|Store))Error\b"
    r"|^(?:[\w.]*\.)?(?:KeyboardInterrupt|SystemExit|SenderGone|ContextTerminated)\b"
    r"|[Cc]onnection (?:closed|reset) by|Broken pipe|Timed out waiting|Socket Timeout|collective operation timeout"
    r"|Engine core initialization failed|Executor failed\.|A worker died or was killed"
    r"|InstantiationException: Error in call to target|no materializable trajectories"  # hydra, verl
    r"|before its last bucket|no trainer has sent weights|\bEI000[26]\b"  # ours, HCCL
)


@dataclass(frozen=True)
class Cause:
    """The cause of a run's failure.

    Attributes:
        error: `Type: message`.
        where: process, host and pid, as far as known.
        log: the log file and the line of the error.
    """

    error: str
    where: str = ""
    log: str = ""

    def lines(self) -> list[str]:
        """Format the cause for a terminal; unknown fields have no line."""
        told = (("cause", self.error), ("where", self.where), ("log", self.log))
        return [f"{name}: {' '.join(text.split())[:LONGEST]}" for name, text in told if text]


class Raised(NamedTuple):
    """An exception found in a log.

    Attributes:
        text: `Type: message`.
        where: the process that raised it; empty for the log's own process.
        line: line number in the log, from 1.
        own: whether the log's own process has written it.
    """

    text: str
    where: str
    line: int
    own: bool


def of_log(log: Path, before: int = 0) -> Cause | None:
    """Find the cause in a log; None if no line of it is an exception.

    Args:
        before: number of lines at the beginning that belong to earlier attempts.
    """
    lines = log.read_text(errors="replace").splitlines()
    raised = cause_in(lines, before)
    if raised is None:
        return None
    where = raised.where or dead_actor(lines[raised.line : raised.line + 8])
    return Cause(raised.text, where, f"{log}:{raised.line}")


def cause_in(lines: Sequence[str], before: int = 0) -> Raised | None:
    """Find what ended the log's own process: its last exception if conclusive, else the first conclusive one."""
    begin = next((at for at in range(len(lines), before, -1) if STEP.search(lines[at - 1])), before)
    found = [one for one in exceptions(lines) if one.line > begin]
    own = [one for one in found if one.own]
    if own and not is_consequence(own[-1].text):
        return own[-1]
    return next((one for one in found if not is_consequence(one.text)), (own or found or [None])[-1])


def exceptions(lines: Iterable[str]) -> Iterator[Raised]:
    """Yield the exceptions that end a traceback, and crashes; lines of each process are followed separately."""
    inside: dict[str, str] = {}  # by writer of the lines: the process whose traceback is being read
    ignored: set[str] = set()  # printed by Python before the traceback
    for number, line in enumerate(lines, start=1):
        writer, text = split(line)
        if text.startswith("Exception ignored in"):
            ignored.add(writer)
        elif remote := REMOTE.search(text):
            inside[writer] = place(remote)
        elif text == TRACEBACK:
            if writer not in ignored:
                inside[writer] = writer
            ignored.discard(writer)
        elif CRASHED.match(text):
            yield Raised(text, writer, number, not writer)
        elif writer in inside and RAISED.fullmatch(text):
            yield Raised(text, inside.pop(writer), number, not writer)


def split(line: str) -> tuple[str, str]:
    """Split a line into its writer (empty for the log's own process) and its text without Ray's and vLLM's prefixes."""
    text, writer = COLOUR.sub("", line.rstrip()), ""
    while found := WRITER.match(text):  # vLLM's prefix follows Ray's
        writer, text = place(found), text[found.end() :]
    return writer, RECORD.sub("", text, count=1) if RECORD.match(text) else text


def place(process: re.Match[str]) -> str:
    """Format a process for a terminal: its name, host and pid."""
    pid = f"pid {process['pid']}" if process["pid"] else None  # Ray omits the raylet's
    return ", ".join(filter(None, (process["name"].strip(), process["ip"], pid)))


def dead_actor(lines: Iterable[str]) -> str:
    """Return the actor that Ray names below an ActorDiedError; empty if it names none."""
    told = dict(found.groups() for line in lines if (found := DEAD_ACTOR.fullmatch(line)))
    return ", ".join(filter(None, (told.get("name"), told.get("ip"), "pid" in told and f"pid {told['pid']}")))


def is_consequence(text: str) -> bool:
    """Return whether `Type: message` results from the end of another process, whose own error is more informative."""
    return CONSEQUENCE.search(text) is not None
