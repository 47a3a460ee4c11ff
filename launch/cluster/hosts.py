"""The state of each host of a run, which the control host derives from its events: what is missing or dead, and why.

A host is dead if its channel has closed, it has not answered for 15 s, its own Ray has ended, or Ray's health checks
report it dead, whichever comes first. For missing hosts, every known reason is reported.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ascend_quant.terminal.exits import DONE, FAILED
from launch.cluster.record import DRIVER, Logs, Status, plain
from launch.cluster.transport import Channel
from launch.environment.network import worker_range
from launch.nodes.checks import Clock, skew
from launch.nodes.protocol import Event
from launch.system.cause import Cause, is_consequence, of_log

SILENT_SECONDS = 15
Missing = list[tuple[str, str]]  # the host's address, and the reason


@dataclass
class HostState:
    """State of one host in one attempt. Times are from time.monotonic().

    Attributes:
        address: address of the host.
        channel: channel to its node process; None for hosts that another process starts (--on-this-node).
        clock: estimate of its clock's offset.
        facts: facts that its checks reported; None before.
        started: whether its Ray has started.
        joined: whether it has joined the cluster.
        problem: one line on why it cannot take part, or why it died; it is final.
        passing: why it could not be reached so far; the launcher retries.
        heard: when its last message arrived.
        waited: when the oldest unanswered heartbeat was sent; None if all are answered.
        last_line: last line that its Ray or its node process wrote.
        ended: whether its node process has reported that everything that it started has ended.
        closed: whether its channel is closed.
    """

    address: str
    channel: Channel | None = None
    clock: Clock = field(default_factory=Clock)
    facts: dict[str, Any] | None = None
    started: bool = False
    joined: bool = False
    problem: str | None = None
    passing: str | None = None
    heard: float = 0.0
    waited: float | None = None
    last_line: str = ""
    ended: bool = False
    closed: bool = False

    @property
    def open(self) -> bool:
        """True if orders can be sent to its node process."""
        return self.channel is not None and not self.closed

    def beat(self) -> None:
        """Send a heartbeat to the node."""
        self.waited = time.monotonic() if self.waited is None else self.waited
        self.channel.send({"beat": time.time()})

    def hear(self) -> None:
        """Record that a message of the host has arrived, which also counts as an answer to its heartbeats."""
        self.heard, self.waited = time.monotonic(), None

    def silent(self) -> str | None:
        """Return why the host counts as dead although its channel is open, or None if it answers."""
        quiet = 0.0 if self.waited is None or not self.open else time.monotonic() - self.waited
        return f"silent for {quiet:.0f} s: it is down, or the network to it is" if quiet >= SILENT_SECONDS else None

    def last_words(self) -> str:
        """Return a suffix with the host's last line, unless its problem already contains that line."""
        telling = self.last_line and self.last_line not in (self.problem or "")
        return f"; its last words: {self.last_line[:200]}" if telling else ""


@dataclass(frozen=True)
class JobEnd:
    """End of the Ray job: its status, Ray's message, and the time at which it was reported (time.monotonic())."""

    status: str
    message: str
    moment: float


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt: the exit code, lines for the user, and the cause of a failure, if known."""

    code: int
    lines: tuple[str, ...] = ()
    cause: Cause | None = None


class Progress:
    """Handles the events of hosts: method on_NAME handles event NAME; launch/nodes/protocol.py lists the events.

    Args:
        counting: whether the head is one of this process's hosts, so that it is known which hosts have joined.
    """

    def __init__(self, hosts: list[HostState], counting: bool, logs: Logs, status: Status) -> None:
        self.hosts, self.counting, self.logs, self.status = hosts, counting, logs, status
        self.job: JobEnd | None = None
        self.closed: list[tuple[int, int, str]] = []  # hosts whose channel has closed, with exit code and stderr
        self.driver_lines = logs.lines[DRIVER]  # number of lines from earlier attempts

    def cause(self) -> Cause | None:
        """Return the cause of the failure: the driver's exception, else a dead host, else Ray's message."""
        log = self.logs.folder / f"{DRIVER}.log"
        found = of_log(log, self.driver_lines) if log.exists() else None
        if found is not None and not is_consequence(found.error):
            return found
        for host in self.hosts:
            if host.problem:
                own = self.logs.folder / f"{plain(host.address)}.log"
                return Cause(f"{host.address}: {host.problem}", log=str(own))
        said = self.job.message.strip().splitlines() if self.job else []
        return found or (Cause(said[-1], log=str(log)) if said else None)

    def take(self, index: int, event: Event) -> None:
        """Dispatch an event of a host to its handler."""
        host = self.hosts[index]
        host.hear()
        fields = {name: value for name, value in event.items() if name != "event"}
        getattr(self, f"on_{event['event']}")(index, host, **fields)

    def on_alive(self, index: int, host: HostState, asked: float, clock: float) -> None:
        host.clock.take(asked, time.time(), clock)

    def on_checked(self, index: int, host: HostState, facts: dict[str, Any]) -> None:
        host.facts = facts

    def on_failed(self, index: int, host: HostState, why: str) -> None:
        self.logs.write(host.address, why)
        host.problem = "; ".join(why.splitlines())

    def on_note(self, index: int, host: HostState, line: str) -> None:
        self.logs.write(host.address, line)
        self.status.say(f"{host.address}: {line}")

    def on_log(self, index: int, host: HostState, source: str, line: str) -> None:
        if source == "driver":
            self.logs.write(DRIVER, line)
            self.status.driver(line)
        else:
            host.last_line = line.strip() or host.last_line
            self.logs.write(host.address, f"{source}: {line}")

    def on_started(self, index: int, host: HostState) -> None:
        host.started = True
        if not self.counting:
            host.joined = True
            self.status.change(joined=1, doing="Ray runs here")

    def on_members(self, index: int, host: HostState, joined: list[int], lost: list[tuple[int, str]]) -> None:
        for number in joined:
            self.hosts[number].joined = True
        for number, why in lost:
            self.hosts[number].problem = (
                self.hosts[number].problem or f"its Ray has died: {' '.join(why.split())[:300]}"
            )
        missing = [host.address for host in self.hosts if not host.joined]
        self.status.change(joined=len(joined), doing=f"waiting for {', '.join(missing)}" if missing else "joined")

    def on_job(self, index: int, host: HostState, status: str, message: str) -> None:
        self.status.change(job=status)
        if status in ("SUCCEEDED", "FAILED", "STOPPED"):
            self.job = JobEnd(status, message, time.monotonic())

    def on_file(self, index: int, host: HostState, name: str, text: str) -> None:
        self.logs.file(host.address, name, text)

    def on_ended(self, index: int, host: HostState, code: int, count: int, kernel_kills: int = 0) -> None:
        host.ended = True
        if kernel_kills:
            self.status.say(f"{host.address}: the kernel has killed {kernel_kills} processes for lack of memory")

    def on_closed(self, index: int, host: HostState, code: int, errors: str) -> None:
        host.closed = True
        self.closed.append((index, code, errors))


def dead(hosts: Sequence[HostState]) -> tuple[str, ...]:
    """Return a line for each host that no longer takes part."""
    for host in hosts:
        host.problem = host.problem or host.silent()
    return tuple(f"{host.address}: {host.problem}{host.last_words()}" for host in hosts if host.problem)


def verdict(hosts: Sequence[HostState], job: JobEnd | None) -> Outcome | None:
    """Return the outcome of the run, or None while it is running.

    A job often fails because a host has just died, so a failure is reported only after every host has answered again.
    """
    if job and job.status == "SUCCEEDED":
        return Outcome(DONE)
    lines = dead(hosts)
    if job is None:
        return Outcome(FAILED, lines) if lines else None
    unanswered = any(host.open and host.heard <= job.moment for host in hosts)
    if unanswered and not lines:
        return None
    return Outcome(FAILED, (*lines, f"the job ended: {job.status}"))


def differing(hosts: Sequence[HostState]) -> Missing:
    """List hosts whose software differs from the head's, or whose clock differs from the control host's."""
    head, found = hosts[0], []
    for host in hosts:
        if host.facts is None:
            continue
        if host is not head and head.facts and (lines := skew(head.facts["versions"], host.facts["versions"])):
            found.append((host.address, f"version skew: {'; '.join(lines)}"))
        if wrong := host.clock.wrong():
            found.append((host.address, wrong))
    return found


def missing(hosts: Sequence[HostState], ports: dict[str, int | str]) -> Missing:
    """List the hosts that have not joined, with the reasons."""
    return [(host.address, why(host, hosts[0], ports)) for host in hosts if not host.joined]


def why(host: HostState, head: HostState, ports: dict[str, int | str]) -> str:
    """Return why a host has not joined, as far as the control host can tell."""
    low, high = worker_range(ports)
    if host.problem or host.passing:
        return host.problem or host.passing
    if host.channel is None:
        return "has not joined: run the same command there (--on-this-node)"
    if host.facts is None:
        return "connected, but its checks have not ended"
    if not host.started:
        return f"its checks passed, but its Ray is not up: {host.last_line or 'no message'}"
    if host is head:
        return f"its Ray runs, but does not count itself as alive: {host.last_line}"
    return f"its Ray runs, but has not joined the head's: are ports {ports['ray']} and {low}-{high} open between them?"
