"""One attempt of a run: it reaches the hosts, compares them, starts Ray, watches hosts and job, and ends everything.

At the end, every host is notified and has 40 seconds to end what it started; hosts that do not confirm are checked.
"""

import queue
import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from ipaddress import ip_address

from ascend_quant.terminal.exits import FAILED, INTERRUPTED, NOT_FORMED
from launch.cluster.hosts import HostState, Missing, Outcome, Progress, dead, differing, missing, verdict
from launch.cluster.record import Logs, Record, Status
from launch.cluster.transport import Channel, command_of, end_on, may_pass, reason
from launch.nodes.protocol import Event
from launch.plan import Plan

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
BEAT_SECONDS = 2
AGAIN_SECONDS = 3
OTHERS_SECONDS = 15  # time after the first problem in which other hosts can report theirs
END_SECONDS = 40


class Interrupt:
    """Counts Ctrl-C from its creation on: the first one ends the run in order, the second one at once.

    SIGTERM, and a closed terminal if `signals` contains SIGHUP, count like Ctrl-C.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.count = 0
        for number in signals:
            signal.signal(number, self._take)

    def _take(self, *_: object) -> None:
        self.count += 1


@dataclass(frozen=True)
class Desk:
    """State that all attempts of a run share; only the first four attributes are used on an existing Ray cluster.

    Attributes:
        record: the record of the run.
        logs: the log files of the run.
        status: the status line.
        interrupt: the counter of Ctrl-C.
        mine: numbers of the hosts that this process starts: all, or with --on-this-node its own.
        token: Ray's authentication token.
        meeting: path of the file through which the hosts share the token, with --on-this-node.
    """

    record: Record
    logs: Logs
    status: Status
    interrupt: Interrupt
    mine: list[int] = field(default_factory=list)
    token: str = ""
    meeting: str | None = None


class Attempt:
    """One attempt of a run; with `patient`, it retries after any problem of joining, as hosts may return late."""

    def __init__(self, plan: Plan, desk: Desk, patient: bool) -> None:
        self.plan, self.desk, self.patient = plan, desk, patient
        self.hosts = [HostState(host.address) for host in plan.inventory.hosts]
        self.mine = [self.hosts[index] for index in desk.mine]
        self.counted = self.hosts if 0 in desk.mine else self.mine  # with --on-this-node, a worker knows only itself
        self.progress = Progress(self.hosts, 0 in desk.mine, desk.logs, desk.status)
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue()
        self.open_at = {index: 0.0 for index in desk.mine}
        self.deadline = time.monotonic() + plan.inventory.join_seconds
        self.first_problem: float | None = None
        self.next_beat = 0.0
        self.gone = False  # whether the hosts have been told to start Ray

    def run(self) -> Outcome:
        """Run the attempt from the first connection to the end of the last process, and return its outcome."""
        self.desk.status.change(joined=0, job="", step=0, doing="reaching the hosts")
        outcome = None
        try:
            while outcome is None:
                self.turn()
                outcome = Outcome(INTERRUPTED) if self.desk.interrupt.count else self.state()
            for line in outcome.lines:  # before the end, as a host that does not answer takes long to end
                self.desk.status.say(line)
        finally:
            self.desk.status.change(job="", doing="ending")
            end_hosts(self.plan, self.mine, self.events, self.progress, self.desk.interrupt)
        return replace(outcome, cause=self.progress.cause()) if outcome.code == FAILED else outcome

    def turn(self) -> None:
        """Open the connections and send the heartbeats that are due, then handle all queued events."""
        now = time.monotonic()
        for index in [index for index, moment in self.open_at.items() if moment <= now]:
            del self.open_at[index]
            self.open(index)
        if now >= self.next_beat:
            self.next_beat = now + BEAT_SECONDS
            for host in self.mine:
                if host.open:
                    host.beat()
        try:
            self.progress.take(*self.events.get(timeout=0.2))
            while True:
                self.progress.take(*self.events.get_nowait())
        except queue.Empty:
            pass
        while self.progress.closed:
            self.closed(*self.progress.closed.pop())

    def open(self, index: int) -> None:
        """Start the node process of a host."""
        host = self.hosts[index]
        host.channel, host.closed, host.waited = Channel(command_of(self.plan, index), index, self.events), False, None
        task = {"token": self.desk.token, "meeting": self.desk.meeting}
        host.channel.send({"run": asdict(self.plan.nodes[index]), **task})

    def closed(self, index: int, code: int, errors: str) -> None:
        """Handle a closed channel: record a final problem of the host, or schedule a restart of its node process."""
        host = self.hosts[index]
        why = host.problem or reason(host.address, code, errors)
        if self.gone or not (self.patient or may_pass(code, errors)):
            host.problem = why
        else:
            host.problem, host.passing, host.facts = None, why, None
            self.open_at[index] = time.monotonic() + AGAIN_SECONDS

    def state(self) -> Outcome | None:
        """Return the outcome, or None while the attempt continues."""
        if all(host.joined for host in self.counted):
            return verdict(self.hosts, self.progress.job)
        if self.gone:
            lines = dead(self.hosts)
            if lines:
                return Outcome(NOT_FORMED, lines)
        else:
            problems = self.compare()
            if problems:
                return not_formed(problems)
        if time.monotonic() < self.deadline:
            return None
        return not_formed(missing(self.counted, self.plan.nodes[0].ports))

    def compare(self) -> Missing:
        """List the hosts that cannot take part, before Ray starts; if all can, tell them to start Ray."""
        problems = [(host.address, host.problem) for host in self.mine if host.problem]
        if problems and self.first_problem is None:
            self.first_problem = time.monotonic()
        ready = all(host.problem or (host.facts and host.clock.known) for host in self.mine)
        if not ready:
            late = problems and time.monotonic() - self.first_problem > OTHERS_SECONDS
            passing = [(host.address, host.passing) for host in self.mine if host.passing and not host.problem]
            return problems + passing if late else []
        problems += differing(self.mine)
        if not problems:
            self.gone = True
            self.desk.status.change(doing="starting Ray")
            addresses = [ip for host in self.mine for ips in host.facts["nics"].values() for ip in ips]
            for host in self.mine:
                host.channel.send({"go": [ip for ip in addresses if not ip_address(ip).is_loopback]})
        return problems


def not_formed(missing: Missing) -> Outcome:
    """Return the outcome of a cluster that did not form, with each missing host and the reason."""
    return Outcome(NOT_FORMED, tuple(f"{address}: {why}" for address, why in missing))


def end_hosts(
    plan: Plan,
    hosts: Sequence[HostState],
    events: "queue.Queue[tuple[int, Event]]",
    progress: Progress,
    interrupt: Interrupt,
) -> None:
    """Tell all hosts to end, and wait; after a second Ctrl-C, do not wait, and let the hosts end by themselves."""
    for host in hosts:
        if host.open:
            host.channel.send({"end": True})
    deadline = time.monotonic() + END_SECONDS
    while any(host.open for host in hosts) and time.monotonic() < deadline and interrupt.count < 2:
        try:
            progress.take(*events.get(timeout=0.2))
        except queue.Empty:
            continue
    for host in hosts:
        if host.open:
            host.channel.kill()  # the node process ends what it started when its stdin closes
    if interrupt.count > 1:
        progress.status.say("ended at once: the hosts end their own processes of the run within a minute")
        return
    unsure = [number for number, state in enumerate(progress.hosts) if state.facts is not None and not state.ended]
    with ThreadPoolExecutor(max(len(unsure), 1)) as threads:
        for line in threads.map(lambda number: check(plan, number), unsure):
            if line is not None:
                progress.status.say(line)


def check(plan: Plan, index: int) -> str | None:
    """End processes that a dead or disconnected node process may have left; return a line about them, or None."""
    address = plan.inventory.hosts[index].address
    count, why = end_on(plan.run, plan.inventory, index, plan.local[index])
    if count is None:
        return f"{address}: could not be ended: {why}. When it is back: ./run.sh stop {plan.run}"
    return f"{address}: {count} processes of this run were left, and have been ended" if count else None
