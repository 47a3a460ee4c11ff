"""How an attempt gets on: the events of its hosts, taken in for the logs and the user, who sees a status.

The user sees the run's lines, and below them one live line; without a terminal, that line when it changes:

joined 2/3 · job RUNNING · step 12 of 100 · 0:12:31
"""

import re
import time
from datetime import timedelta
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from launch.cause import COLOUR, Cause, is_consequence, of_log
from launch.cluster.hosts import HostState, JobEnd
from launch.cluster.record import DRIVER, Logs, plain
from launch.nodes.protocol import Event

STEP = re.compile(r"(?:^|\s)step:(\d+) - ")  # verl's console logger, once a step
STEPS = re.compile(r"Total training steps: (\d+)")


class Status:
    """The state of a run, for people."""

    def __init__(self, console: Console, hosts: int) -> None:
        self.console, self.hosts = console, hosts
        self.joined, self.job, self.doing = 0, "", "starting"
        self.step, self.steps = 0, 0
        self.began = time.monotonic()
        self.told = ""
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Status":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def text(self) -> str:
        """The status without the time."""
        parts = [f"joined {self.joined}/{self.hosts}", self.doing]
        if self.job:
            parts[1] = f"job {self.job}"
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        return " · ".join(parts)

    def render(self) -> Spinner:
        elapsed = timedelta(seconds=int(time.monotonic() - self.began))
        return Spinner("dots", Text(f"{self.text()} · {elapsed}", overflow="ellipsis", no_wrap=True))

    def change(self, **values: int | str) -> None:
        """Set joined, job, doing, step or steps."""
        for name, value in values.items():
            setattr(self, name, value)
        if not self.console.is_terminal and self.text() != self.told:
            self.told = self.text()
            self.say(self.told)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(Text(line), soft_wrap=True)

    def driver(self, line: str) -> None:
        """A line of verl's driver; its steps are counted."""
        text = COLOUR.sub("", line)
        self.console.print(Text.from_ansi(line), soft_wrap=True)
        if found := STEPS.search(text):
            self.change(steps=int(found[1]))
        if found := STEP.search(text):
            self.change(step=int(found[1]))


class Progress:
    """Takes events in: the method on_NAME takes the event of that name; launch/nodes/protocol.py lists them.

    Args:
        counting: the head is one of this process's hosts, so it is known who has joined.
    """

    def __init__(self, hosts: list[HostState], counting: bool, logs: Logs, status: Status) -> None:
        self.hosts, self.counting, self.logs, self.status = hosts, counting, logs, status
        self.job: JobEnd | None = None
        self.closed: list[tuple[int, int, str]] = []  # hosts whose channel has closed, with exit code and stderr
        self.driver_lines = logs.lines[DRIVER]  # of earlier attempts

    def cause(self) -> Cause | None:
        """Why the run has failed: the driver's exception, else a host that has died, else Ray's words on the job."""
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
            self.status.say(
                f"{host.address}: for want of memory the kernel has ended {kernel_kills} processes meanwhile"
            )

    def on_closed(self, index: int, host: HostState, code: int, errors: str) -> None:
        host.closed = True
        self.closed.append((index, code, errors))
