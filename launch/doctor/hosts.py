"""All hosts of an inventory: each examines itself at the same time as the others, then they are compared.

A child for each host (ssh, docker, or a shell where the host is this machine) carries lines of JSON to the doctor there
(__main__.py), and stays open while the hosts listen for each other.
"""

import json
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from queue import Empty, Queue
from typing import Any

from ascend_quant.documents import BadDocument, parse_json
from launch.doctor.checking import HostReport, Report
from launch.doctor.checks.hosts import TOGETHER, Meeting
from launch.doctor.checks.network import ranges
from launch.doctor.requirements import Wanted, wanted_of
from launch.inventory.fields import Inventory
from launch.processes import piped
from launch.recipes.fields import Recipe
from launch.recipes.settings import Paths
from launch.stacks import pins

END_SECONDS = 5
EXAMINE_SECONDS = 300  # imports of torch, on a slow shared disk
ANSWER_SECONDS = 60


class HostSilent(RuntimeError):
    """A host did not answer; the message says why."""


class Channel:
    """One host.

    Attributes:
        command: what is run here to reach it.
        reason: makes one line of the command's exit code and stderr.
    """

    def __init__(self, command: Sequence[str], reason: Callable[[int, str], str]) -> None:
        self.reason = reason
        self.child = piped(command)
        self.answers: Queue[str | None] = Queue()
        self.complaints: list[str] = []
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_stderr)]
        for reader in self.readers:
            reader.start()

    def _read_answers(self) -> None:
        for line in self.child.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def _read_stderr(self) -> None:
        self.complaints += self.child.stderr

    def ask(self, kind: str, value: Any, seconds: float) -> dict[str, Any]:
        """The answer to a request (__main__.py).

        Raises:
            HostSilent: the connection ended, no answer came in time, or what came is none.
        """
        try:
            self.child.stdin.write(json.dumps({kind: value}) + "\n")
            self.child.stdin.flush()
            line = self.answers.get(timeout=seconds)
        except BrokenPipeError:
            line = None
        except Empty:
            raise HostSilent(f"no answer within {seconds:g} s") from None
        if line is None:
            raise HostSilent(self._why())
        try:
            answer = parse_json(line, "its answer")
        except BadDocument:
            answer = None
        if not isinstance(answer, dict):
            raise HostSilent(f"in place of an answer: {line[:80]!r}: does a login shell there print something?")
        return answer

    def _why(self) -> str:
        code = self.child.wait()
        for reader in self.readers:
            reader.join(END_SECONDS)
        return self.reason(code, "".join(self.complaints))

    def close(self) -> None:
        """End the child: at the end of its input it ends by itself."""
        with suppress(BrokenPipeError):  # it has ended already
            self.child.stdin.close()
        try:
            self.child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()


Open = Callable[[Inventory, int], Channel]
Tell = Callable[[str], None]


def open_channel(inventory: Inventory, index: int) -> Channel:
    """A conversation with a host of the inventory, in its container where it has an image."""
    from launch.cluster.transport import command, reason
    from launch.network import is_here
    from launch.plan.start import start_line

    host = inventory.hosts[index]
    line = start_line(inventory, index, ["-m", "launch.doctor"])
    return Channel(command(inventory, host, line, is_here(host.address)), partial(reason, host.address))


def examine_hosts(
    inventory: Inventory,
    recipe: Recipe | None,
    paths: Paths | None,
    tell: Tell,
    open_one: Open = open_channel,
    kl: float | None = None,
) -> Report:
    """The report of all hosts; `tell` hears what is being done."""
    wanted = {host.address: wanted_of(inventory, at, recipe, paths, kl) for at, host in enumerate(inventory.hosts)}
    channels = {host.address: open_one(inventory, at) for at, host in enumerate(inventory.hosts)}
    survey = Survey(channels)
    try:
        tell(f"examining {len(channels)} hosts")
        answers = survey.all("examine", {host: asdict(one) for host, one in wanted.items()}, EXAMINE_SECONDS)
        reports = [HostReport.of(host, answer) for host, answer in answers.items()]
        tell("comparing clocks")
        clocks = {host: found for host in answers if (found := survey.clock(host))}
        tell("connecting hosts with each other")
        tried, unreached = survey.connect({host: one for host, one in wanted.items() if host in answers})
    finally:
        for channel in channels.values():
            channel.close()
    meeting = Meeting(survey.silent, clocks, tried, tuple(unreached))
    return Report(reports, [finding for check in TOGETHER for finding in check(reports, meeting)])


class Survey:
    """Questions to all hosts at once. A host that does not answer is remembered as silent and asked no more."""

    def __init__(self, channels: dict[str, Channel]) -> None:
        self.channels = channels
        self.silent: dict[str, str] = {}

    def all(self, kind: str, values: dict[str, Any], seconds: float = ANSWER_SECONDS) -> dict[str, dict[str, Any]]:
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
        answer = self._ask(host, "clock", True, ANSWER_SECONDS)
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
