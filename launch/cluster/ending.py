"""The end of an attempt: every host is told, has half a minute to end what it started, and is checked."""

import queue
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from launch.cluster.hosts import HostState
from launch.cluster.interrupt import Interrupt
from launch.cluster.news import News
from launch.cluster.transport import end_on
from launch.nodes.events import Event
from launch.plan.fields import Plan

END_SECONDS = 40


def end_hosts(
    plan: Plan,
    hosts: Sequence[HostState],
    events: "queue.Queue[tuple[int, Event]]",
    news: News,
    interrupt: Interrupt,
) -> None:
    """Tell all hosts to end, and wait; a second Ctrl-C ends the waiting, and hosts then end by themselves."""
    for host in hosts:
        if host.open:
            host.channel.send({"end": True})
    deadline = time.monotonic() + END_SECONDS
    while any(host.open for host in hosts) and time.monotonic() < deadline and not interrupt.insisted:
        try:
            news.take(*events.get(timeout=0.2))
        except queue.Empty:
            continue
    for host in hosts:
        if host.open:
            host.channel.kill()  # its node process ends its own when its stdin closes
    if interrupt.insisted:
        news.status.say("ended at once: the hosts end what runs on them by themselves, within a minute")
        return
    unsure = [number for number, state in enumerate(news.hosts) if state.facts is not None and not state.ended]
    with ThreadPoolExecutor(max(len(unsure), 1)) as threads:
        for line in threads.map(lambda number: check(plan, number), unsure):
            if line is not None:
                news.status.say(line)


def check(plan: Plan, index: int) -> str | None:
    """A host whose node process died, or was cut off, may still run what it started: end that, or say so."""
    host = plan.inventory.hosts[index]
    ssh, container = plan.inventory.ssh_of(host), plan.containers[index]
    count, why = end_on(plan.run, ssh, host.address, plan.start[index], plan.local[index], container)
    if count is None:
        return f"{host.address}: could not be ended: {why}. When it is back: ./run.sh stop {plan.run}"
    return f"{host.address}: {count} were left of this run: ended" if count else None
