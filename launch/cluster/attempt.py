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
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace

from ascend_quant.processes.cause import Cause, is_consequence, of_log
from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED
from launch.cluster.desk import DRIVER, Desk, Outcome
from launch.cluster.transport import Channel, Event, command_of, end_on, may_pass, reason
from launch.plan import Plan
from launch.system.private import plain

BEAT_SECONDS = 5
AGAIN_SECONDS = 3
TOGETHER_SECONDS, OTHERS_SECONDS = 2, 15  # time for other problems, if all hosts have ended their checks, or not
END_SECONDS = 40
TOLD = re.compile(r"(note|error|status): (.*)")  # launch/nodes/launcher.py
BY_ITSELF = (DONE, FAILED, NOT_FORMED)  # exit codes of a part


class Part(Channel):
    """The part of a host, which was started.

    Attributes:
        address: address of the host.
        code: exit code of the part; None while it runs.
        checked: whether the host has passed its checks.
        problems: why the host cannot take part, or why its part has ended too early; one line each.
    """

    def __init__(self, plan: Plan, index: int, events: "queue.Queue[Event]") -> None:
        super().__init__(command_of(plan, index), index, events)
        self.address = plan.inventory.hosts[index].address
        self.code: int | None = None
        self.checked, self.problems = False, []


class Attempt:
    """One attempt of a run.

    Args:
        mine: numbers of the hosts whose parts it starts: all, or with --on-this-node its own.
        patient: whether it retries after any problem of joining, since hosts may return late.
    """

    def __init__(self, plan: Plan, desk: Desk, mine: Sequence[int], patient: bool) -> None:
        self.plan, self.desk, self.patient, self.first = plan, desk, patient, mine[0]
        self.parts: dict[int, Part] = {}
        self.due = dict.fromkeys(mine, 0.0)  # when a host's part is started, in time.monotonic()
        self.passing: dict[int, str] = {}  # why a host could not be reached so far; it is tried again
        # Ray's token; with --on-this-node, the head chooses it
        all_hosts = len(mine) == len(plan.nodes)
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
        parts, now = self.parts.values(), time.monotonic()
        if self.desk.interrupt.count:
            return Outcome(INTERRUPTED)
        if self.first in self.parts and (code := self.parts[self.first].code) in BY_ITSELF:
            return Outcome(code, self.lines())
        problems = any(part.problems for part in parts)
        if problems and self.formed:
            return Outcome(FAILED, self.lines())
        if problems and not self.patient:
            self.first_problem = self.first_problem or now
            known = not self.due and all(part.problems or part.checked for part in parts)
            over = now - self.first_problem > (TOGETHER_SECONDS if known else OTHERS_SECONDS)
            return Outcome(NOT_FORMED, self.lines()) if over else None
        if now < self.deadline:
            return None
        late = [*self.due, *(part.host for part in parts if not part.checked)]
        if not late:  # after the checks, the head knows who is missing
            return None
        hosts, seconds = self.plan.inventory.hosts, self.plan.inventory.join_seconds
        why = f"it has not connected and ended its checks within {seconds} s"
        return Outcome(NOT_FORMED, tuple(f"{hosts[one].address}: {self.passing.get(one, why)}" for one in sorted(late)))

    def lines(self) -> tuple[str, ...]:
        """Return a line for each host with a problem; the head's own lines name the hosts that they are about."""
        addresses = {host.address for host in self.plan.inventory.hosts}
        found = []
        for _, part in sorted(self.parts.items()):
            about = [line for line in part.problems if line.partition(": ")[0] in addresses]
            own = [line for line in part.problems if line not in about]
            found += [f"{part.address}: {'; '.join(own)}"] if own else []
            found += about
        return tuple(found)

    def turn(self) -> None:
        """Start the parts and send the beats that are due, then handle all queued events."""
        now = time.monotonic()
        for index in [index for index, at in self.due.items() if at <= now]:
            del self.due[index]
            self.parts[index] = Part(self.plan, index, self.events)
            self.parts[index].send(json.dumps({"run": asdict(self.plan.nodes[index]), "token": self.token}))
        if now >= self.next_beat:
            self.next_beat = now + BEAT_SECONDS
            for part in self.running():
                part.send("")
        self.take_events()

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
        part = self.parts[event.host]
        if event.code is not None:
            self.closed(part, event.code)
        elif event.is_output:
            self.desk.logs.write(DRIVER, event.line)
            self.desk.status.driver(event.line)
        elif told := TOLD.fullmatch(event.line):
            self.told(part, *told.groups())
        else:
            self.desk.logs.write(part.address, event.line)

    def told(self, part: Part, word: str, text: str) -> None:
        """Handle a line for the user."""
        if word == "status":
            part.checked = True
            fields = json.loads(text)
            formed = fields.pop("formed", False)
            if part.host == self.first and not self.ending:
                self.formed |= formed
                self.desk.status.change(**fields)
            return
        self.desk.logs.write(part.address, f"{word}: {text}")
        if word == "note":
            self.desk.status.say(f"note: {part.address}: {text}")
        elif not self.ending:
            part.problems.append(text)

    def closed(self, part: Part, code: int) -> None:
        """Handle the end of a part: keep what is wrong, or schedule a new start."""
        part.code, errors = code, "\n".join(part.errors)
        if code not in BY_ITSELF:
            part.problems.append(reason(part.address, code, errors))
        if self.ending:
            if code not in BY_ITSELF:
                self.desk.status.say(f"{part.address}: {part.problems[-1]}")
        elif code != DONE and not self.formed and (self.patient or may_pass(code, errors)):
            del self.parts[part.host]
            self.passing[part.host] = "; ".join(part.problems)
            self.due[part.host] = time.monotonic() + AGAIN_SECONDS

    def end(self) -> None:
        """End all parts, and wait; after a second Ctrl-C, do not wait, and let the hosts end by themselves."""
        for part in self.running():
            part.close()
        deadline = time.monotonic() + END_SECONDS
        while self.running() and time.monotonic() < deadline and self.desk.interrupt.count < 2:
            self.take_events()
        if self.desk.interrupt.count > 1:
            self.desk.status.say("ended at once: the hosts end their own processes of the run within a minute")
            return
        for part in self.running():
            part.kill()  # over ssh only the client: the part ends what it started when its stdin closes
        unsure = [part for part in self.parts.values() if part.code not in BY_ITSELF]
        with ThreadPoolExecutor(max(len(unsure), 1)) as threads:
            for line in filter(None, threads.map(self.check, unsure)):
                self.desk.status.say(line)

    def running(self) -> list[Part]:
        """Return the parts that run."""
        return [part for part in self.parts.values() if part.code is None]

    def check(self, part: Part) -> str | None:
        """End processes that a part may have left on its host; return a line about them, or None."""
        plan, address = self.plan, part.address
        count, why = end_on(plan.run, plan.inventory, part.host, plan.local[part.host])
        if count is None:
            return f"{address}: could not be ended: {why}. When it is back: ./run.sh stop {plan.run}"
        return f"{address}: {count} processes of this run were left, and have been ended" if count else None

    def cause(self) -> Cause | None:
        """Return the cause of the failure: the driver's exception, else a host's problem."""
        log = self.desk.logs.folder / f"{DRIVER}.log"
        found = of_log(log, self.earlier_lines) if log.exists() else None
        if found is not None and not is_consequence(found.error):
            return found
        for _, part in sorted(self.parts.items()):
            if part.problems:
                own = self.desk.logs.folder / f"{plain(part.address)}.log"
                return Cause(f"{part.address}: {'; '.join(part.problems)}", log=str(own))
        return found
