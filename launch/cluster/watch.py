"""How an attempt stands once Ray runs everywhere: the job has ended, a host has died, or it goes on.

A host is dead when its channel has closed, when it has not answered for 15 s, when its own Ray has ended, or when
Ray's health checks say so; whichever is known first.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from launch.cause.cause import Cause
from launch.cluster.hosts import HostState
from launch.cluster.news import JobEnd

DONE, FAILED, NOT_FORMED, INTERRUPTED = 0, 1, 3, 130


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended: the exit code, a line for each thing to tell, and why it failed, once that is known."""

    code: int
    lines: tuple[str, ...] = ()
    cause: Cause | None = None


def dead(hosts: Sequence[HostState]) -> tuple[str, ...]:
    """A line for each host that takes part no more."""
    for host in hosts:
        host.problem = host.problem or host.silent()
    return tuple(f"{host.address}: {host.problem}{host.last_words()}" for host in hosts if host.problem)


def verdict(hosts: Sequence[HostState], job: JobEnd | None) -> Outcome | None:
    """The outcome, or None while the run goes on.

    A job often fails because a host has died a moment ago: before it is told, every host must have answered since.
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
