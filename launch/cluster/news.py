"""What the events of the hosts mean: for what is known of each, for the logs, and for the user.

The method on_NAME takes the event of that name; launch/nodes/events.py lists them.
"""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.cluster.cause import Evidence, Failure
from launch.cluster.hosts import HostState
from launch.cluster.logs import DRIVER, Logs
from launch.cluster.record import Record
from launch.cluster.status import Status
from launch.nodes.events import Event


@dataclass(frozen=True)
class JobEnd:
    """How the job ended, Ray's words on that, and when it became known (time.monotonic())."""

    status: str
    message: str
    moment: float


class News:
    """Takes events in.

    Args:
        counting: the head is one of this process's hosts, so it is known who has joined.
    """

    def __init__(self, hosts: list[HostState], counting: bool, record: Record, logs: Logs, status: Status) -> None:
        self.hosts, self.counting, self.record, self.logs, self.status = hosts, counting, record, logs, status
        self.job: JobEnd | None = None
        self.closed: list[tuple[int, int, str]] = []  # hosts whose channel has closed, with exit code and stderr
        self.failures: list[Failure] = []
        self.files: list[tuple[int, Path]] = []  # Ray's own logs, with the host that has sent them
        self.driver_lines = logs.lines[DRIVER]  # of earlier attempts

    @property
    def evidence(self) -> Evidence:
        """What there is to find the cause of a failure."""
        said = self.job.message if self.job else ""
        return Evidence(self.hosts, self.logs.folder, self.driver_lines, self.failures, self.files, said)

    def take(self, index: int, event: Event) -> None:
        """One event of one host."""
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

    def on_started(self, index: int, host: HostState, pid: int, address: str) -> None:
        host.started = True
        self.record.started(index, pid, host.facts)
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

    def on_failures(self, index: int, host: HostState, found: list[dict[str, Any]]) -> None:
        self.failures = [Failure(**fields) for fields in found]

    def on_file(self, index: int, host: HostState, name: str, text: str) -> None:
        self.files.append((index, self.logs.file(host.address, name, text)))

    def on_ended(self, index: int, host: HostState, code: int, count: int, kernel_kills: int = 0) -> None:
        host.ended, host.kernel_kills = True, kernel_kills

    def on_closed(self, index: int, host: HostState, code: int, errors: str) -> None:
        host.closed = True
        self.closed.append((index, code, errors))
