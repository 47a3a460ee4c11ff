"""Why an attempt failed: from Ray's records of what failed when, the logs of all hosts, and what is known of the hosts.

What came first is decided by Ray's times where it has them, else by the driver's log, in which Ray merges the lines of
all workers as they come. An exception that only says that another process has ended is a consequence, never preferred.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from launch.cause import Cause, consequence, first, fix, primary, since_last_step, telling
from launch.cluster.hosts import HostState
from launch.cluster.record import DRIVER, plain
from launch.nodes.ray_state import TASK
from launch.tracebacks import CRASHED, Raised, exceptions

RAISED = "TASK_EXECUTION_EXCEPTION"
USER_EXCEPTION = "User exception:\n"
KILLED = "Killed: it left neither an exception nor a crash report, as SIGKILL does"
BY_KERNEL = "Killed: by the kernel, which had no memory left on this host"
BY_RAY = "HostOutOfMemory: Ray's memory monitor has killed it: "
EXIT_CODE = re.compile(r"exit code (\d+)")
SEARCHED = 60  # characters of a message by which it is found in a log


@dataclass(frozen=True)
class Failure:
    """What Ray knows of one failure.

    Attributes:
        what: `task`, which ended with an exception, or `worker`, which died.
        kind: Ray's error type or exit type.
        text: the end of the traceback, or Ray's words on the worker's end.
        actor: its name, or its class where it has none.
        task: its name; of a worker the one that it had begun, or empty.
        host: its number in the plan; None where Ray does not say.
        milliseconds: when, since the epoch.
    """

    what: str
    kind: str
    text: str
    actor: str
    task: str
    pid: int | None
    host: int | None
    milliseconds: int

    def raised(self) -> Raised | None:
        """The task's exception."""
        if self.what != TASK or self.kind != RAISED:
            return None
        chains = exceptions(self.text.removeprefix(USER_EXCEPTION).splitlines(), inside=True)
        return next((telling(chain) for chain in reversed(chains) if not chain[-1].bare), None)

    @property
    def process(self) -> str:
        """For people: the actor and what it did."""
        method = self.task.rpartition(".")[2]
        return f"{self.actor} ({method})" if self.actor and method else self.actor or self.task


@dataclass
class Evidence:
    """All that is known of one attempt.

    Attributes:
        logs: the folder of all logs; the first `before` lines of the driver's are of earlier attempts.
        files: Ray's own logs that the hosts have sent, by the number of the host.
        said: Ray's words on the job's end.
    """

    hosts: list[HostState]
    logs: Path
    before: int
    failures: list[Failure] = field(default_factory=list)
    files: list[tuple[int, Path]] = field(default_factory=list)
    said: str = ""

    @property
    def driver(self) -> Path:
        return self.logs / f"{DRIVER}.log"

    def cause(self) -> Cause | None:
        """The cause, or None when nothing is known."""
        lines = self.driver.read_text(errors="replace").splitlines() if self.driver.exists() else []
        lines[: self.before] = [""] * self.before
        return self.by_time() or self.dead_host() or self.behind(lines) or self.by_log(lines) or self.last_resort()

    def by_time(self) -> Cause | None:
        """The first exception, or the first worker that died on a host that lives."""
        for failure in self.failures:
            raised = failure.raised()
            if raised is not None and not consequence(raised.text):
                return self.told(raised.text, failure.process, failure.host, failure.pid)
            if failure.what != TASK and not self.problem(failure.host):
                return self.death(failure)
        return None

    def death(self, failure: Failure) -> Cause:
        """Of a worker: who has ended it, as far as that can be known."""
        if failure.kind == "NODE_OUT_OF_MEMORY":
            return self.told(BY_RAY + failure.text, failure.process, failure.host, failure.pid)
        files = self.own_files(failure.host, failure.pid)
        if left := EXIT_CODE.search(failure.text):
            words = next(filter(None, map(last_words, files)), "it left no word")
            return self.told(f"Exited with code {left[1]}: {words}", failure.process, failure.host, failure.pid)
        crashes = (one.text for file in files for one in raised_in(file) if one.type == CRASHED)
        by_kernel = failure.host is not None and self.hosts[failure.host].kernel_kills
        error = next(crashes, BY_KERNEL if by_kernel else KILLED)
        return self.told(error, failure.process, failure.host, failure.pid)

    def dead_host(self) -> Cause | None:
        """The first host that takes part no more."""
        host = next((host for host in self.hosts if host.problem), None)
        if host is None:
            return None
        error = f"{host.address}: {host.problem}"
        if host.kernel_kills:
            error += f"; the kernel has ended {host.kernel_kills} processes there for want of memory"
        return Cause(error, f"host {host.address}", str(self.logs / f"{plain(host.address)}.log"), fix(error) or "")

    def behind(self, lines: list[str]) -> Cause | None:
        """What stands behind the first consequence: the error of a process of the actor's own, as vLLM's engine is."""
        chains = since_last_step(lines) if self.failures else []
        for failure in self.failures:
            raised = primary(telling(chain) for chain in chains if failure.pid in chain[-1].pids)
            for file in self.own_files(failure.host, failure.pid) if raised is None else ():
                raised = raised or primary(raised_in(file))
            if raised is not None:
                return self.told(
                    raised.text, raised.process or failure.process, failure.host, raised.pid or failure.pid
                )
        return None

    def by_log(self, lines: list[str]) -> Cause | None:
        """What the driver's log names."""
        raised = first(lines)
        if raised is None:
            return None
        cause = self.told(raised.text, raised.process or "the driver", None, raised.pid)
        return replace(cause, where=f"{raised.process}, {raised.ip}, pid {raised.pid}") if raised.ip else cause

    def last_resort(self) -> Cause | None:
        """Ray's words."""
        if self.failures:
            failure = self.failures[0]
            return self.told(f"{failure.kind}: {failure.text}", failure.process, failure.host, failure.pid)
        lines = self.said.strip().splitlines()
        return Cause(lines[-1], log=str(self.driver)) if lines else None

    def told(self, error: str, process: str, host: int | None, pid: int | None) -> Cause:
        """The cause with its place and its log."""
        address = self.hosts[0 if host is None else host].address
        number = f"pid {pid}" if pid else ""
        where = ", ".join(filter(None, (process, address, number)))
        return Cause(error, where, self.log(error, host, pid), fix(error) or "")

    def log(self, error: str, host: int | None, pid: int | None) -> str:
        """Where it stands: in the process's own log, else in the driver's; with the line."""
        own = self.own_files(host, pid)
        for file in (*own, self.driver):
            begin = self.before if file == self.driver else 0
            if line := line_of(file, error, begin):
                return f"{file}:{line}"
        return str(own[0] if own else self.driver)

    def own_files(self, host: int | None, pid: int | None) -> list[Path]:
        """What a worker has written, its stderr first."""
        names = (f"-{pid}.err", f"-{pid}.out")
        return [
            file for name in names for index, file in self.files if host in (index, None) and file.name.endswith(name)
        ]

    def problem(self, host: int | None) -> str | None:
        """Why a host takes part no more."""
        return None if host is None else self.hosts[host].problem


def raised_in(file: Path) -> Iterable[Raised]:
    """The exceptions of a log."""
    return [telling(chain) for chain in exceptions(file.read_text(errors="replace").splitlines())]


def last_words(file: Path) -> str:
    """The last line that the process itself has written; Ray's own begin with a colon."""
    lines = [line.strip() for line in file.read_text(errors="replace").splitlines()]
    return next((line for line in reversed(lines) if line and not line.startswith(":")), "")


def line_of(file: Path, error: str, before: int) -> int | None:
    """The number of the first line that has the error's message, from 1; the first `before` lines do not count."""
    message = error.partition(": ")[2][:SEARCHED]
    if not message or error in (KILLED, BY_KERNEL) or not file.exists():
        return None
    with file.open(errors="replace") as opened:
        return next((at for at, line in enumerate(opened, start=1) if at > before and message in line), None)
