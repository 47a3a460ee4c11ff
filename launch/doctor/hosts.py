"""All hosts of an inventory: each examines itself at the same time as the others, then they are compared.

One child a host (ssh, or a shell where the host is this machine) stays open while the hosts listen for each other.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from functools import partial
from typing import Any

from launch.doctor.channel import Channel, HostSilent
from launch.doctor.checks.hosts import TOGETHER, Meeting
from launch.doctor.gather.network import ranges
from launch.doctor.report import HostReport, Report
from launch.doctor.wanted import Wanted, wanted_of
from launch.inventory.fields import Inventory
from launch.recipes.fields import Recipe
from launch.recipes.settings import Paths
from launch.stacks import pins

EXAMINE_SECONDS = 300  # imports of torch, on a slow shared disk
TALK_SECONDS = 60

Open = Callable[[Inventory, int], Channel]
Tell = Callable[[str], None]


def open_channel(inventory: Inventory, index: int) -> Channel:
    """A conversation with a host of the inventory, in its container where it has an image."""
    from launch.cluster.reasons import reason
    from launch.cluster.transport import command
    from launch.network import is_here
    from launch.plan.start import start_line

    host = inventory.hosts[index]
    line = start_line(inventory, index, ["-m", "launch.doctor"])
    return Channel(command(inventory, host, line, is_here(host.address)), partial(reason, host.address))


def examine_hosts(
    inventory: Inventory, recipe: Recipe | None, paths: Paths | None, tell: Tell, open_one: Open = open_channel
) -> Report:
    """The report of all hosts; `tell` hears what is being done."""
    wanted = {host.address: wanted_of(inventory, at, recipe, paths) for at, host in enumerate(inventory.hosts)}
    channels = {host.address: open_one(inventory, at) for at, host in enumerate(inventory.hosts)}
    talk = Talk(channels)
    try:
        tell(f"examining {len(channels)} hosts")
        answers = talk.all("examine", {host: asdict(one) for host, one in wanted.items()}, EXAMINE_SECONDS)
        reports = [HostReport.of(host, answer) for host, answer in answers.items()]
        tell("comparing clocks")
        clocks = {host: found for host in answers if (found := talk.clock(host))}
        tell("connecting hosts with each other")
        tried, unreached = talk.connect({host: one for host, one in wanted.items() if host in answers})
    finally:
        for channel in channels.values():
            channel.close()
    meeting = Meeting(talk.silent, clocks, tried, tuple(unreached))
    return Report(reports, [finding for check in TOGETHER for finding in check(reports, meeting)])


class Talk:
    """Questions to all hosts at once. A host that does not answer is remembered as silent and asked no more."""

    def __init__(self, channels: dict[str, Channel]) -> None:
        self.channels = channels
        self.silent: dict[str, str] = {}

    def all(self, kind: str, values: dict[str, Any], seconds: float = TALK_SECONDS) -> dict[str, dict[str, Any]]:
        """The answers of those that answer, in the order of `values`."""
        with ThreadPoolExecutor(max(len(values), 1)) as pool:
            answers = pool.map(lambda host: self._ask(host, kind, values[host], seconds), values)
            return {host: answer for host, answer in zip(values, answers, strict=True) if answer is not None}

    def _ask(self, host: str, kind: str, value: Any, seconds: float) -> dict[str, Any] | None:
        if host in self.silent:
            return None
        try:
            return self.channels[host].ask(kind, value, seconds)
        except HostSilent as reason:
            self.silent[host] = str(reason)
            return None

    def clock(self, host: str) -> tuple[float, float] | None:
        """How many seconds the host's clock is ahead of ours, and how wrong that may be: half the time it took."""
        started = time.time()
        answer = self._ask(host, "clock", True, TALK_SECONDS)
        ended = time.time()
        return None if answer is None else (answer["clock"] - (started + ended) / 2, (ended - started) / 2)

    def connect(self, wanted: dict[str, Wanted]) -> tuple[int, list[tuple[str, str, int, str]]]:
        """Let every host connect to every other: how many connections, and (from, to, port, why) of what failed."""
        there = self.all("listen", {host: [host, ports_of(one)] for host, one in wanted.items()})
        host_at = {answer["address"]: host for host, answer in there.items()}
        targets = {
            start: [(end["address"], port) for host, end in there.items() if host != start for port in end["ports"]]
            for start in there
        }
        answers = self.all("connect", targets)
        unreached = [
            (start, host_at[at], port, why)
            for start, answer in answers.items()
            for at, port, why in answer["unreached"]
        ]
        return sum(len(targets[start]) for start in answers), unreached


def ports_of(wanted: Wanted) -> list[int]:
    """The ports of a host that the others must reach: the first of each range, any, and on the head Ray's.

    Any, since torch.distributed, TransferQueue and vLLM take what the kernel gives them.
    """
    names = ["workers", *(["hccl_host"] if pins(wanted.stack).devices == "npu" else [])]
    first = [ranges(str(wanted.ports[name]))[0][0] for name in names]
    own = [int(wanted.ports["ray"]), int(wanted.ports["dashboard"])] if wanted.head else []
    return [*own, *first, 0]
