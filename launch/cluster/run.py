"""A run, from the first connection to the exit code: attempts, as many as restarts allow, and their record.

A restart ends everything on every host, waits for the hosts as at the beginning, and submits the same job: verl goes
on from its last checkpoint. Exit status: 0 done, 1 failed, 3 the cluster did not form, 130 Ctrl-C.

With --on-this-node the same command runs on every host: each starts its own part, and they meet at the head's Ray.
Nobody reaches the other hosts, so they share two things in --out, which is the same storage on all: Ray's token, and
the versions of the head's software.
"""

import os
import secrets
from collections.abc import Sequence
from dataclasses import asdict, replace

from rich.console import Console

from ascend_quant.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED
from launch.cause import Cause
from launch.cluster.attempt import Attempt, Desk, Interrupt
from launch.cluster.hosts import Outcome
from launch.cluster.progress import Status
from launch.cluster.record import Logs, Record
from launch.plan.fields import Plan

TOKEN = "RAY_AUTH_TOKEN"
METRICS = "VERL_FILE_LOGGER_ROOT"
STATES = {DONE: "done", FAILED: "failed", NOT_FORMED: "not formed", INTERRUPTED: "stopped"}
SAID = {
    DONE: "done",
    FAILED: "the run failed",
    NOT_FORMED: "the cluster did not form",
    INTERRUPTED: "ended on request",
}
MEETING = ".ray_meeting.json"


def run(plan: Plan, restarts: int) -> int:
    """Run on all hosts of the plan, from here; returns the exit code."""
    return run_on(plan, range(len(plan.nodes)), None, restarts)


def run_on_this_node(plan: Plan, host: int, restarts: int) -> int:
    """This host's part of the plan; the head's exit code is the job's, and the workers learn it from the head."""
    return run_on(plan, [host], f"{plan.out}/{MEETING}" if len(plan.nodes) > 1 else None, restarts)


def run_on(plan: Plan, mine: Sequence[int], meeting: str | None, restarts: int) -> int:
    """Run on those hosts of the plan that this process starts; returns the exit code."""
    record, console = Record.create(plan), Console(soft_wrap=True)
    logs = Logs(record.folder)
    token = os.environ.get(TOKEN) or secrets.token_hex(32)
    outcome = Outcome(FAILED)
    try:
        with Interrupt() as interrupt, Status(console, len(plan.nodes)) as status:
            desk = Desk(list(mine), token, meeting, record, logs, status, interrupt)
            status.say(f"run {plan.run}; logs: {logs.folder}; to end it: Ctrl-C, or ./run.sh stop {plan.run}")
            outcome = attempts(plan, desk, restarts)
            status.say(f"{SAID[outcome.code]}; logs: {logs.folder}")
            tell(outcome.cause, desk)
    finally:
        record.change(state=STATES[outcome.code])
        logs.close()
    return outcome.code


def attempts(plan: Plan, desk: Desk, restarts: int) -> Outcome:
    """The outcome of the last attempt."""
    outcome = Attempt(plan, desk, patient=False).run()
    for number in range(1, restarts + 1):
        if outcome.code != FAILED:
            break
        tell(outcome.cause, desk)
        desk.status.say(f"restart {number} of {restarts}")
        desk.record.change(restarts=number)
        outcome = Attempt(again(plan, number), desk, patient=True).run()
    return outcome


def tell(cause: Cause | None, desk: Desk) -> None:
    """Why it failed, for people and for the record; nothing follows that is not of another attempt."""
    if cause is None:
        return
    desk.record.change(cause=asdict(cause))
    for line in cause.lines():
        desk.status.say(line)


def again(plan: Plan, number: int) -> Plan:
    """The plan of a restart: the same job, with metrics in a folder of their own, since verl begins the file anew."""
    head, *workers = plan.nodes
    variables = dict(head.job.environment)
    if METRICS in variables:
        variables[METRICS] += f"-restart{number}"
    return replace(plan, nodes=[replace(head, job=replace(head.job, environment=variables)), *workers])
