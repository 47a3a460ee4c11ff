"""A run, from the first connection to the exit code: attempts, as many as restarts allow, and their record; its end.

A restart ends everything on every host, waits for the hosts as at the beginning, and submits the same job: verl goes
on from its last checkpoint. Exit status: 0 done, 1 failed, 3 the cluster did not form, 130 Ctrl-C.

With --on-this-node the same command runs on every host: each starts its own part, and they meet at the head's Ray.
Nobody reaches the other hosts, so they share two things in --out, which is the same storage on all: Ray's token, and
the versions of the head's software.

`./run.sh stop [RUN]` ends what a run has started, on every host, by the run's id, and nothing else: first the process
that controls the run, if it lives on this machine, which ends all in order; then every host is asked, so that this
works after a crash too. Only what carries the run's id is ended, and nothing that the record says is run.
"""

import os
import secrets
import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED, WRONG_USE
from ascend_quant.terminal.progress import waiting
from launch import LaunchError
from launch.cluster.attempt import SIGNALS, Attempt, Desk, Interrupt
from launch.cluster.hosts import Outcome
from launch.cluster.record import RUNNING, RUNS, Logs, Record, Status, find
from launch.cluster.transport import end_on
from launch.plan import Job, Plan
from launch.system.cause import Cause
from launch.system.processes import still_running

TOKEN = "RAY_AUTH_TOKEN"
METRICS = "VERL_FILE_LOGGER_ROOT"
STATES = {DONE: "done", FAILED: "failed", NOT_FORMED: "not formed", INTERRUPTED: "stopped"}
SAID = {
    DONE: "done",
    FAILED: "the run failed",
    NOT_FORMED: "the run did not start",
    INTERRUPTED: "ended on request",
}
MEETING = ".ray_meeting.json"
CONTROL_SECONDS = 60


def run(plan: Plan, restarts: int, here: int | None = None) -> int:
    """Run the plan from here, on all of its hosts; returns the exit code.

    Args:
        here: this host's number, with --on-this-node: its part alone. The head's exit code is then the job's, and the
            workers learn it from the head.
    """
    mine = list(range(len(plan.nodes))) if here is None else [here]
    meeting = f"{plan.out}/{MEETING}" if here is not None and len(plan.nodes) > 1 else None
    token = os.environ.get(TOKEN) or secrets.token_hex(32)

    def attempt(desk: Desk, number: int) -> Outcome:
        known = replace(desk, mine=mine, token=token, meeting=meeting)
        return Attempt(again(plan, number), known, patient=number > 0).run()

    return conduct(Record.create(plan), len(plan.nodes), restarts, attempt)


def conduct(
    record: Record,
    hosts: int,
    restarts: int,
    attempt: Callable[[Desk, int], Outcome],
    signals: Sequence[signal.Signals] = SIGNALS,
) -> int:
    """Make attempts until one does not fail or restarts are used up, and tell and record it all; returns the exit code.

    Args:
        hosts: how many join the run; 0 where they are there already.
        attempt: makes an attempt of this number, from 0.
        signals: those that end the run.
    """
    logs, name, outcome = Logs(record.folder), record.told.run, Outcome(FAILED)
    try:
        with Status(Console(soft_wrap=True), hosts) as status:
            desk = Desk(record, logs, status, Interrupt(signals))
            status.say(f"run {name}; logs: {logs.folder}; to end it: Ctrl-C, or ./run.sh stop {name}")
            outcome = attempt(desk, 0)
            for number in range(1, restarts + 1):
                if outcome.code != FAILED:
                    break
                tell(outcome.cause, desk)
                status.say(f"restart {number} of {restarts}")
                record.change(restarts=number)
                outcome = attempt(desk, number)
            status.say(f"{SAID[outcome.code]}; logs: {logs.folder}")
            tell(outcome.cause, desk)
    finally:
        record.change(state=STATES[outcome.code])
        logs.close()
    return outcome.code


def tell(cause: Cause | None, desk: Desk) -> None:
    """Report why an attempt failed, to people and in the record; all that follows is of another attempt."""
    if cause is None:
        return
    desk.record.change(cause=asdict(cause))
    for line in cause.lines():
        desk.status.say(line)


def again(plan: Plan, number: int) -> Plan:
    """Return the plan of an attempt; that of a restart is the same, with its metrics in a folder of their own."""
    head, *workers = plan.nodes
    job = head.job and replace(head.job, environment=variables_of(head.job, number))
    return replace(plan, nodes=[replace(head, job=job), *workers])


def variables_of(job: Job, number: int) -> dict[str, str]:
    """Return a job's variables in an attempt; a restart has another folder for metrics, as verl truncates the file."""
    if number == 0 or METRICS not in job.environment:
        return job.environment
    return job.environment | {METRICS: f"{job.environment[METRICS]}-restart{number}"}


def stop(run: str | None, runs: Path = RUNS) -> int:
    """End a run; returns DONE, FAILED when a host could not be reached, or WRONG_USE when there is no such run."""
    console = Console(soft_wrap=True)
    try:
        record, problems = find(run, runs)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return WRONG_USE
    for problem in problems:
        print(problem, file=sys.stderr)
    end_control(record, console)
    code = stop_hosts(record, console) if record.told.ray is None else stop_jobs(record, console)
    if code == DONE and record.told.state == RUNNING:
        record.change(state="stopped")
    return code


def stop_jobs(record: Record, console: Console) -> int:
    """End a run on a Ray cluster that was there before it."""
    from launch.ray_jobs.cluster import connect

    told = record.told
    try:
        with waiting(f"run {told.run}: asking {told.ray}"):
            ended = connect(told.ray).stop_run(told.run)
    except (LaunchError, OSError) as error:
        console.print(f"{told.ray}: could not be ended: {error}", markup=False)
        return FAILED
    console.print(f"{told.ray}: {', '.join(ended) + ' ended' if ended else 'nothing left'}", markup=False)
    return DONE


def stop_hosts(record: Record, console: Console) -> int:
    """End a run on each of its inventory's hosts."""
    hosts = record.told.inventory.hosts
    with waiting(f"run {record.told.run}: asking {len(hosts)} hosts"), ThreadPoolExecutor(len(hosts)) as threads:
        told = record.told
        end = threads.map(lambda host: end_on(told.run, told.inventory, host, told.local[host]), range(len(hosts)))
        answers = list(end)
    for host, (count, why) in zip(hosts, answers, strict=True):
        done = f"{count} ended" if count else "nothing left"
        console.print(f"{host.address}: {f'could not be ended: {why}' if count is None else done}", markup=False)
    return FAILED if any(count is None for count, _ in answers) else DONE


def end_control(record: Record, console: Console) -> None:
    """Ask the controlling process to end the run, and wait; one that does not is ended itself."""
    control = record.control()
    if control is None:
        return
    with waiting(f"run {record.told.run}: its control process {control.pid} ends it"):
        control.terminate()
        stubborn = still_running([control], CONTROL_SECONDS)
    if stubborn:
        console.print(f"process {control.pid} did not end the run within {CONTROL_SECONDS} s: it is killed")
        control.kill()
    record.told = Record.load(record.folder).told
