"""One attempt of a run: it starts each host's part, passes on what the parts print, and ends them all.

The first part's end decides: the head's, or with --on-this-node that of this host. An attempt fails earlier if another
part ends with an error, or ssh loses its host. Before the hosts have formed a cluster, all that is wrong is collected
for a moment, so that it is told together, and a host that is still starting is tried again.

At the end, every part has 40 seconds to end what it started; hosts whose part did not end by itself are asked again.
"""

import json
import os
import queue
import re
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED
from launch.cluster.desk import DRIVER, Desk, Outcome
from launch.cluster.transport import Channel, Event, command_of, end_on, may_pass, reason
from launch.plan import Plan
from launch.system.cause import Cause, is_consequence, of_log
from launch.system.private import plain

BEAT_SECONDS = 5
AGAIN_SECONDS = 3
TOGETHER_SECONDS, OTHERS_SECONDS = 2, 15  # time for other problems, if all hosts have ended their checks, or not
END_SECONDS = 40
TOLD = re.compile(r"(note|error|status): (.*)")  # launch/nodes/launcher.py
BY_ITSELF = (DONE, FAILED, NOT_FORMED)  # exit codes of a part


@dataclass
class HostState:
    """State of one host in one attempt. Times are from time.monotonic().

    Attributes:
        address: address of the host.
        channel: channel to its part.
        code: exit code of its part; None while it runs.
        checked: whether it has passed its checks.
        problems: why it cannot take part, or why its part has ended too early; one line each.
        passing: why it could not be reached so far; it is tried again.
        open_at: when its part is started.
    """

    address: str
    channel: Channel | None = None
    code: int | None = None
    checked: bool = False
    problems: list[str] = field(default_factory=list)
    passing: str = ""
    open_at: float | None = 0.0

    @property
    def open(self) -> bool:
        """True while its part runs."""
        return self.channel is not None and self.code is None


class Attempt:
    """One attempt of a run; with `patient`, it retries after any problem of joining, as hosts may return late."""

    def __init__(self, plan: Plan, desk: Desk, patient: bool) -> None:
        self.plan, self.desk, self.patient = plan, desk, patient
        self.hosts = {index: HostState(plan.inventory.hosts[index].address) for index in desk.mine}
        self.first = self.hosts[desk.mine[0]]
        # Ray's token; with --on-this-node, the head chooses it
        all_hosts = len(self.hosts) == len(plan.nodes)
        self.token = (os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)) if all_hosts else None
        self.events: queue.Queue[Event] = queue.Queue()
        self.deadline = time.monotonic() + plan.inventory.join_seconds
        self.first_problem: float | None = None
        self.next_beat = 0.0
        self.formed, self.ending = False, False
        self.earlier_lines = desk.logs.lines[DRIVER]  # lines of earlier attempts

    def run(self) -> Outcome:
        """Run the attempt from the first connection to the end of the last process, and return its outcome."""
        self.desk.status.change(joined=0, job="", step=0, doing="reaching the hosts")
        try:
            while (outcome := self.outcome()) is None:
                self.turn()
            for line in outcome.lines:  # before the end, as a host that does not answer takes long to end
                self.desk.status.say(line)
        finally:
            self.ending = True
            self.desk.status.change(job="", doing="ending")
            self.end()
        return replace(outcome, cause=self.cause()) if outcome.code == FAILED else outcome

    def outcome(self) -> Outcome | None:
        """Return the outcome, or None while the attempt continues."""
        if self.desk.interrupt.count:
            return Outcome(INTERRUPTED)
        if self.first.code in BY_ITSELF:
            return Outcome(self.first.code, self.lines())
        now = time.monotonic()
        if any(host.problems for host in self.hosts.values()):
            if self.formed:
                return Outcome(FAILED, self.lines())
            self.first_problem = self.first_problem or now
            known = all(host.problems or host.checked for host in self.hosts.values())
            over = now - self.first_problem > (TOGETHER_SECONDS if known else OTHERS_SECONDS)
            return Outcome(NOT_FORMED, self.lines()) if over else None
        late = [host for host in self.hosts.values() if not host.checked]
        if now < self.deadline or not late:  # after the checks, the head knows who is missing
            return None
        for host in late:
            seconds = self.plan.inventory.join_seconds
            host.problems.append(host.passing or f"it has not connected and ended its checks within {seconds} s")
        return Outcome(NOT_FORMED, self.lines())

    def lines(self) -> tuple[str, ...]:
        """Return a line for each host with a problem; the head's own lines name the hosts that they are about."""
        addresses = {host.address for host in self.plan.inventory.hosts}
        found = []
        for host in self.hosts.values():
            about = [line for line in host.problems if line.partition(": ")[0] in addresses]
            own = [line for line in host.problems if line not in about]
            found += [f"{host.address}: {'; '.join(own)}"] if own else []
            found += about
        return tuple(found)

    def turn(self) -> None:
        """Start the parts and send the beats that are due, then handle all queued events."""
        now = time.monotonic()
        for index, host in self.hosts.items():
            if host.open_at is not None and host.open_at <= now:
                self.open(index, host)
        if now >= self.next_beat:
            self.next_beat = now + BEAT_SECONDS
            for host in self.hosts.values():
                if host.open:
                    host.channel.send("")
        self.take_events()

    def open(self, index: int, host: HostState) -> None:
        """Start the part of a host."""
        host.channel, host.code, host.open_at = Channel(command_of(self.plan, index), index, self.events), None, None
        host.channel.send(json.dumps({"run": asdict(self.plan.nodes[index]), "token": self.token}))

    def take_events(self) -> None:
        """Handle all queued events; wait a little for the first."""
        try:
            self.take(self.events.get(timeout=0.2))
            while True:
                self.take(self.events.get_nowait())
        except queue.Empty:
            return

    def take(self, event: Event) -> None:
        """Handle an event of a part: a line, or its end."""
        host = self.hosts[event.host]
        if event.code is not None:
            self.closed(host, event.code)
        elif event.is_output:
            self.desk.logs.write(DRIVER, event.line)
            self.desk.status.driver(event.line)
        elif told := TOLD.fullmatch(event.line):
            self.told(host, *told.groups())
        else:
            self.desk.logs.write(host.address, event.line)

    def told(self, host: HostState, word: str, text: str) -> None:
        """Handle a line for the user."""
        if word == "status":
            host.checked = True
            fields = json.loads(text)
            formed = fields.pop("formed", False)
            if host is self.first and not self.ending:
                self.formed |= formed
                self.desk.status.change(**fields)
            return
        self.desk.logs.write(host.address, f"{word}: {text}")
        if word == "note":
            self.desk.status.say(f"note: {host.address}: {text}")
        elif not self.ending:
            host.problems.append(text)

    def closed(self, host: HostState, code: int) -> None:
        """Handle the end of a part: keep what is wrong, or schedule a new start."""
        host.code, errors = code, "\n".join(host.channel.errors)
        if code not in BY_ITSELF:
            host.problems.append(reason(host.address, code, errors))
        if self.ending:
            if code not in BY_ITSELF:
                self.desk.status.say(f"{host.address}: {host.problems[-1]}")
        elif code != DONE and not self.formed and (self.patient or may_pass(code, errors)):
            host.passing, host.problems, host.checked = "; ".join(host.problems), [], False
            host.code, host.channel, host.open_at = None, None, time.monotonic() + AGAIN_SECONDS

    def end(self) -> None:
        """End all parts, and wait; after a second Ctrl-C, do not wait, and let the hosts end by themselves."""
        for host in self.hosts.values():
            if host.open:
                host.channel.close()
        deadline = time.monotonic() + END_SECONDS
        while self.running() and time.monotonic() < deadline and self.desk.interrupt.count < 2:
            self.take_events()
        for host in self.running():
            host.channel.kill()  # its part ends what it started when its stdin closes
        if self.desk.interrupt.count > 1:
            self.desk.status.say("ended at once: the hosts end their own processes of the run within a minute")
            return
        unsure = [index for index, host in self.hosts.items() if host.channel and host.code not in BY_ITSELF]
        with ThreadPoolExecutor(max(len(unsure), 1)) as threads:
            for line in filter(None, threads.map(self.check, unsure)):
                self.desk.status.say(line)

    def running(self) -> list[HostState]:
        """Return the hosts whose part runs."""
        return [host for host in self.hosts.values() if host.open]

    def check(self, index: int) -> str | None:
        """End processes that a part may have left on its host; return a line about them, or None."""
        plan, host = self.plan, self.hosts[index]
        count, why = end_on(plan.run, plan.inventory, index, plan.local[index])
        if count is None:
            return f"{host.address}: could not be ended: {why}. When it is back: ./run.sh stop {plan.run}"
        return f"{host.address}: {count} processes of this run were left, and have been ended" if count else None

    def cause(self) -> Cause | None:
        """Return the cause of the failure: the driver's exception, else a host's problem."""
        log = self.desk.logs.folder / f"{DRIVER}.log"
        found = of_log(log, self.earlier_lines) if log.exists() else None
        if found is not None and not is_consequence(found.error):
            return found
        for host in self.hosts.values():
            if host.problems:
                own = self.desk.logs.folder / f"{plain(host.address)}.log"
                return Cause(f"{host.address}: {'; '.join(host.problems)}", log=str(own))
        return found
