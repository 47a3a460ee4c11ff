"""What a run may not leave on a host, and what it may not take away."""

import time
from collections.abc import Iterable

import psutil

from cluster.host import Host

SETTLE_SECONDS = 10  # sshd's processes for a connection end a moment after it


def check_clean(hosts: Iterable[Host], seconds: float = SETTLE_SECONDS) -> None:
    """Every process of a host is one that was there before the test, and all of those still live.

    Args:
        seconds: how long the others have to end.

    Raises:
        AssertionError: naming each process that is left or gone, and its host.
    """
    found = []
    for host in hosts:
        if host.is_on:
            found += [f"{host.name}: left: {described(process)}" for process in left(host, seconds)]
            found += [f"{host.name}: gone: {process}" for process in gone(host)]
    assert not found, "\n".join(["the hosts are not as they were:", *found])


def left(host: Host, seconds: float) -> set[psutil.Process]:
    """The processes that do not end, of those that came after the host was made."""
    deadline = time.monotonic() + seconds
    while (extra := host.processes() - host.residents) and time.monotonic() < deadline:
        time.sleep(0.1)
    return extra


def gone(host: Host) -> set[psutil.Process]:
    """The processes that no longer run, of those that nobody was to touch."""
    return host.residents - host.processes()


def described(process: psutil.Process) -> str:
    try:
        return f"{process.pid} {' '.join(process.cmdline())[:200]}"
    except psutil.NoSuchProcess:
        return f"{process.pid}, which has ended by now"
