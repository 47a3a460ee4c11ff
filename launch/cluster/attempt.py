"""One attempt of a run: reach the hosts, compare them, let Ray start, watch hosts and job, end everything."""

import queue
import time
from dataclasses import asdict, dataclass, replace

from launch.cluster import join
from launch.cluster.ending import end_hosts
from launch.cluster.hosts import HostState
from launch.cluster.interrupt import Interrupt
from launch.cluster.logs import Logs
from launch.cluster.news import News
from launch.cluster.reasons import may_pass, reason
from launch.cluster.record import Record
from launch.cluster.status import Status
from launch.cluster.transport import Channel, command_of
from launch.cluster.watch import FAILED, INTERRUPTED, NOT_FORMED, Outcome, dead, verdict
from launch.nodes.events import Event
from launch.plan.fields import Plan

BEAT_SECONDS = 2
AGAIN_SECONDS = 3
OTHERS_SECONDS = 15  # once one host cannot take part, the others have this long to say so too


@dataclass(frozen=True)
class Desk:
    """What all attempts of a run share.

    Attributes:
        mine: the numbers of the hosts that this process starts: all, or the own one (--on-this-node).
        token: Ray's.
        meeting: the file by which the hosts meet, with --on-this-node.
    """

    mine: list[int]
    token: str
    meeting: str | None
    record: Record
    logs: Logs
    status: Status
    interrupt: Interrupt


class Attempt:
    """One attempt. With `patient` every problem of joining may pass: after a restart, hosts need time to come back."""

    def __init__(self, plan: Plan, desk: Desk, patient: bool) -> None:
        self.plan, self.desk, self.patient = plan, desk, patient
        self.hosts = [HostState(host.address) for host in plan.inventory.hosts]
        self.mine = [self.hosts[index] for index in desk.mine]
        self.counted = self.hosts if 0 in desk.mine else self.mine  # a worker of --on-this-node knows its own alone
        self.news = News(self.hosts, 0 in desk.mine, desk.record, desk.logs, desk.status)
        self.events: queue.Queue[tuple[int, Event]] = queue.Queue()
        self.open_at = {index: 0.0 for index in desk.mine}
        self.deadline = time.monotonic() + plan.inventory.join_seconds
        self.first_problem: float | None = None
        self.next_beat = 0.0
        self.gone = False  # all hosts were told to start Ray

    def run(self) -> Outcome:
        """From the first connection to the end of the last process."""
        self.desk.status.change(joined=0, job="", step=0, doing="reaching the hosts")
        outcome = None
        try:
            while outcome is None:
                self.turn()
                outcome = Outcome(INTERRUPTED) if self.desk.interrupt.asked else self.state()
            for line in outcome.lines:  # now: a host that does not answer takes long to end
                self.desk.status.say(line)
        finally:
            self.desk.status.change(job="", doing="ending")
            end_hosts(self.plan, self.mine, self.events, self.news, self.desk.interrupt)
        return replace(outcome, cause=self.news.evidence.cause()) if outcome.code == FAILED else outcome

    def turn(self) -> None:
        """Connections and beats that are due, then all news there are."""
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
            self.news.take(*self.events.get(timeout=0.2))
            while True:
                self.news.take(*self.events.get_nowait())
        except queue.Empty:
            pass
        while self.news.closed:
            self.closed(*self.news.closed.pop())

    def open(self, index: int) -> None:
        """Start the node process of a host."""
        host = self.hosts[index]
        host.channel, host.closed, host.waited = Channel(command_of(self.plan, index), index, self.events), False, None
        task = {"token": self.desk.token, "meeting": self.desk.meeting}
        host.channel.send({"run": asdict(self.plan.nodes[index]), **task})

    def closed(self, index: int, code: int, errors: str) -> None:
        """A node process has gone: for ever, or to be started again."""
        host = self.hosts[index]
        why = host.problem or reason(host.address, code, errors)
        if self.gone or not (self.patient or may_pass(code, errors)):
            host.problem = why
        else:
            host.problem, host.passing, host.facts = None, why, None
            self.open_at[index] = time.monotonic() + AGAIN_SECONDS

    def state(self) -> Outcome | None:
        """The outcome, or None while it goes on."""
        if all(host.joined for host in self.counted):
            return verdict(self.hosts, self.news.job)
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
        return not_formed(join.missing(self.counted, self.plan.nodes[0].ports))

    def compare(self) -> join.Missing:
        """Before Ray starts: hosts that cannot take part; when all can, they are told to go."""
        problems = [(host.address, host.problem) for host in self.mine if host.problem]
        if problems and self.first_problem is None:
            self.first_problem = time.monotonic()
        ready = all(host.problem or (host.facts and host.clock.known) for host in self.mine)
        if not ready:
            late = problems and time.monotonic() - self.first_problem > OTHERS_SECONDS
            passing = [(host.address, host.passing) for host in self.mine if host.passing and not host.problem]
            return problems + passing if late else []
        problems += join.differing(self.mine)
        if not problems:
            self.gone = True
            self.desk.status.change(doing="starting Ray")
            for host in self.mine:
                host.channel.send({"go": True})
        return problems


def not_formed(missing: join.Missing) -> Outcome:
    """The cluster did not form: every missing host, and why."""
    return Outcome(NOT_FORMED, tuple(f"{address}: {why}" for address, why in missing))
