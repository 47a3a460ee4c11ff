"""The exceptions in a log of verl, Ray and vLLM, each with the process that raised it.

Such a log mixes processes: Ray and vLLM put `(name pid=7, ip=..)` before each line, one after the other where both do,
and Ray repeats a remote traceback below `ray::Actor.method() (pid=7, ip=..)`. Lines are followed for each process.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
PROCESS = re.compile(r"\((?P<name>[^()]*?) ?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[^()]+))?\) ?")
RECORD = re.compile(r"(?P<level>[A-Z]+) \d\d-\d\d \d\d:\d\d:\d\d \[[^\]]*\] ?")  # vLLM's logger
REPEATED = re.compile(r" \[repeated \d+x across cluster\].*")
TRACEBACK = "Traceback (most recent call last):"
REMOTE = re.compile(r"ray::(?P<name>[\w.]+)(?:\(\))? \(pid=(?P<pid>\d+), ip=(?P<ip>[^,)\s]+)")
FRAME = re.compile(r'\s*File "(?P<file>.+)", line (?P<line>\d+), in (?P<function>.+)')
CHAINED = ("During handling of the above exception,", "The above exception was the direct cause of")
RAISED = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*[a-z]\w*)(?:: (?P<message>.*))?")
BARE = re.compile(r"(?P<type>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception))\b(?:: (?P<message>.*))")
CRASH = re.compile(r"Fatal Python error: (?P<what>.+)|\*\*\* (?P<signal>SIG(?:SEGV|BUS|ABRT|FPE|ILL)) ")  # Python, Ray
CRASHED = "Crash"
DIED = re.compile(r".*\w*[Pp]roc\w* .* died unexpectedly.*|.*engine core exited unexpectedly.*")  # vLLM, of its own
LOST = re.compile(  # Ray's raylet, of a worker
    r".*A worker died or was killed .*Worker IP address: (?P<ip>\S+) .*Worker PID: (?P<pid>\d+) "
    r".*Worker exit detail: (?P<detail>.*?)(?: Some (?:common|potential) .*)?$"
)
TOLD = ("DEBUG", "INFO", "WARNING")  # levels at which an exception is reported that somebody has handled
LONG = ("ConfigCompositionException", "ValidationError")  # the first line of these says little
MORE_LINES = 2


@dataclass
class Raised:
    """One exception.

    Attributes:
        process: by name; empty for the process whose log this is.
        pids: of the process, and of the one that writes its lines, which is another one for vLLM's processes.
        ip: of its host; None where the log does not say.
        line: its number in the log, from 1.
        bare: an error without a traceback, which may be a mere message.
    """

    type: str
    message: str
    line: int
    process: str = ""
    pids: tuple[int, ...] = ()
    ip: str | None = None
    bare: bool = False

    @property
    def text(self) -> str:
        """As Python prints it."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def pid(self) -> int | None:
        """Of the process; None for the one whose log this is."""
        return self.pids[-1] if self.pids else None


Chain = list[Raised]  # exceptions of which each was raised while the one before was handled


@dataclass
class Following:
    """A process's lines so far."""

    inside: int | None = None  # how deep the traceback is indented that is being read
    chained: bool = False
    ignored: bool = False  # Python says so before the traceback
    handled: bool = False
    frame: str = ""
    remote: re.Match[str] | None = None
    open: Raised | None = None  # its message goes on
    more: int = 0  # for so many lines
    chain: Chain = field(default_factory=list)


@dataclass(frozen=True)
class Line:
    """A line without what Ray and vLLM put before it."""

    text: str
    level: str
    process: str
    pids: tuple[int, ...]
    ip: str | None


def plain(line: str) -> Line:
    """Take the colours and the names of processes off."""
    text, name, pids, ip = COLOUR.sub("", line.rstrip()), "", (), None
    while found := PROCESS.match(text):
        name, pids, ip = found["name"], (*pids, int(found["pid"])), found["ip"] or ip
        text = text[found.end() :]
    record = RECORD.match(text)
    if record:
        text = text[record.end() :]
    return Line(REPEATED.sub("", text), record["level"] if record else "", name, pids, ip)


def exceptions(lines: Iterable[str], inside: bool = False) -> list[Chain]:
    """The exceptions that nobody is known to have handled, in the order of their ends.

    Args:
        inside: the text begins in the middle of a traceback.
    """
    following: dict[tuple[int, ...], Following] = {(): Following(inside=0 if inside else None)}
    chains: list[Chain] = []
    for number, text in enumerate(lines, start=1):
        line = plain(text)
        state = following.setdefault(line.pids, Following())
        raised = step(state, line, number)
        if raised is None:
            continue
        if not state.chained or not state.chain:
            state.chain = []
            chains.append(state.chain)
        state.chain.append(raised)
        state.chained = False
    return chains


def step(state: Following, line: Line, number: int) -> Raised | None:
    """Take in one line of a process; an exception, if the line ends its traceback."""
    text, stripped = line.text, line.text.strip()
    if stripped.startswith("Exception ignored in"):
        state.ignored = True
    elif stripped.startswith(CHAINED):
        state.chained, state.more = True, 0
    elif remote := REMOTE.search(text):
        state.inside, state.remote, state.handled, state.more = 0, remote, False, 0
    elif stripped == TRACEBACK:
        state.inside, state.more = len(text) - len(text.lstrip()), 0
        state.handled, state.ignored = state.ignored or line.level in TOLD, False
    elif state.inside is not None:
        return inside_traceback(state, line, number)
    elif state.more and stripped and not line.level:
        state.more -= 1
        state.open.message += f" {stripped}"
    elif found := CRASH.match(stripped):
        return made(CRASHED, found["what"] or found["signal"], line, state, number)
    elif found := DIED.match(stripped):
        return made("ProcessDied", stripped, line, state, number)
    elif found := LOST.match(stripped):
        return Raised("ProcessDied", found["detail"], number, "a worker of Ray", (int(found["pid"]),), found["ip"])
    elif line.level not in TOLD and (found := BARE.fullmatch(stripped)):
        raised = made(found["type"], found["message"], line, state, number)
        raised.bare = True
        return raised
    return None


def inside_traceback(state: Following, line: Line, number: int) -> Raised | None:
    """A frame, a line of source, the exception itself, or what another thread has written in between."""
    indented = line.text[state.inside : state.inside + 1].isspace()
    if indented or not line.text.strip():
        if frame := FRAME.match(line.text):
            state.frame = f"in {frame['function']} ({frame['file']}:{frame['line']})"
        return None
    found = RAISED.fullmatch(line.text.strip())
    if not found:
        return None
    state.inside = None
    if state.handled:
        return None
    state.open = made(found["type"], found["message"] or state.frame, line, state, number)
    state.more = MORE_LINES if state.open.type.endswith(LONG) else 0
    return state.open


def made(kind: str, message: str, line: Line, state: Following, number: int) -> Raised:
    """An exception of the process that writes the line, or of the remote one whose traceback it repeats."""
    if state.remote is None:
        return Raised(kind, message, number, line.process, line.pids, line.ip)
    remote, state.remote = state.remote, None
    return Raised(kind, message, number, remote["name"], (int(remote["pid"]),), remote["ip"])
