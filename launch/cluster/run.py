"""A run from the first connection to the exit code: its attempts, restarts and record; and `stop`, which ends a run.

Every host runs the same command, its part (launch/nodes). This machine starts the parts of all hosts over ssh, or with
--on-this-node only its own, and does not connect to other hosts.

A restart ends everything on every host, waits for the hosts as at the start, and submits the same job; verl continues
from its last checkpoint. Exit status: 0 if done, 1 if the run failed, 3 if the cluster did not form, 130 after Ctrl-C.

`./run.sh stop [RUN]` ends the processes of a run on every host. First it ends the process that controls the run, if
that is on this machine, which ends the others in order; then it connects to every host, so that it works after a crash,
too. It ends only processes that are marked with the run's id, and executes nothing from the record.
"""

import signal
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from ascend_quant.processes.cause import Cause
from ascend_quant.processes.tree import still_running
from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED, WRONG_USE
from ascend_quant.terminal.progress import waiting
from launch import LaunchError
from launch.cluster.attempt import Attempt
from launch.cluster.desk import SIGNALS, Desk, Interrupt, Logs, Outcome, Status
from launch.cluster.record import RUNNING, RUNS, Record, find
from launch.cluster.transport import end_on
from launch.plan import Job, Plan

METRICS = "VERL_FILE_LOGGER_ROOT"
STATES = {DONE: "done", FAILED: "failed", NOT_FORMED: "not formed", INTERRUPTED: "stopped"}
SAID = {
    DONE: "done",
    FAILED: "the run failed",
    NOT_FORMED: "the run did not start",
    INTERRUPTED: "ended on request",
}
CONTROL_SECONDS = 60


def run(plan: Plan, restarts: int, here: int | None = None) -> int:
    """Run the plan on all of its hosts and return the exit code.

    Args:
        here: number of this host, to run only its part (--on-this-node). The head's exit code is then the job's, and
            the workers receive it from the head.
    """
    mine = list(range(len(plan.nodes))) if here is None else [here]

    def attempt(desk: Desk, number: int) -> Outcome:
        return Attempt(again(plan, number), desk, mine, patient=number > 0).run()

    return conduct(Record.create(plan), len(plan.nodes), restarts, attempt)


def conduct(
    record: Record,
    hosts: int,
    restarts: int,
    attempt: Callable[[Desk, int], Outcome],
    signals: Sequence[signal.Signals] = SIGNALS,
) -> int:
    """Make attempts until one does not fail or no restarts are left, with status and record; return the exit code.

    Args:
        hosts: number of hosts that join the run; 0 on an existing Ray cluster.
        attempt: function that makes an attempt, given its number from 0.
        signals: signals that end the run.
    """
    logs, name, outcome = Logs(record.folder), record.run, Outcome(FAILED)
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
    """Print and record the cause of an attempt's failure, if it is known."""
    if cause is None:
        return
    desk.record.change(cause=asdict(cause))
    for line in cause.lines():
        desk.status.say(line)


def again(plan: Plan, number: int) -> Plan:
    """Return the plan of an attempt; a restart has the same plan, but a metrics folder of its own."""
    head, *workers = plan.nodes
    job = head.job and replace(head.job, environment=variables_of(head.job, number))
    return replace(plan, nodes=[replace(head, job=job), *workers])


def variables_of(job: Job, number: int) -> dict[str, str]:
    """Return a job's variables in an attempt; a restart has its own metrics folder, as verl truncates the file."""
    if number == 0 or METRICS not in job.environment:
        return job.environment
    return job.environment | {METRICS: f"{job.environment[METRICS]}-restart{number}"}


def stop(run: str | None, runs: Path = RUNS) -> int:
    """End a run; return DONE, FAILED if a host could not be reached, or WRONG_USE if there is no such run."""
    console = Console(soft_wrap=True)
    try:
        record, problems = find(run, runs)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return WRONG_USE
    for problem in problems:
        print(problem, file=sys.stderr)
    end_control(record, console)
    record = Record.load(record.folder)  # as its control process has left it
    code = stop_hosts(record, console) if record.ray is None else stop_jobs(record, console)
    if code == DONE and record.state == RUNNING:
        record.change(state="stopped")
    return code


def stop_jobs(record: Record, console: Console) -> int:
    """End a run on an existing Ray cluster."""
    from launch.ray_jobs.cluster import connect

    try:
        with waiting(f"run {record.run}: asking {record.ray}"):
            ended = connect(record.ray).stop_run(record.run)
    except (LaunchError, OSError) as error:
        console.print(f"{record.ray}: could not be ended: {error}", markup=False)
        return FAILED
    console.print(f"{record.ray}: {', '.join(ended) + ' ended' if ended else 'nothing left'}", markup=False)
    return DONE


def stop_hosts(record: Record, console: Console) -> int:
    """End a run on each host of its inventory."""
    hosts = record.inventory.hosts

    def end(host: int) -> tuple[int | None, str]:
        return end_on(record.run, record.inventory, host, record.local[host])

    with waiting(f"run {record.run}: asking {len(hosts)} hosts"), ThreadPoolExecutor(len(hosts)) as threads:
        answers = list(threads.map(end, range(len(hosts))))
    for host, (count, why) in zip(hosts, answers, strict=True):
        done = f"{count} ended" if count else "nothing left"
        console.print(f"{host.address}: {f'could not be ended: {why}' if count is None else done}", markup=False)
    return FAILED if any(count is None for count, _ in answers) else DONE


def end_control(record: Record, console: Console) -> None:
    """Terminate the controlling process, which ends the run, and wait; kill it if it does not end in time."""
    control = record.controller()
    if control is None:
        return
    with waiting(f"run {record.run}: its control process {control.pid} ends it"):
        control.terminate()
        stubborn = still_running([control], CONTROL_SECONDS)
    if stubborn:
        console.print(f"process {control.pid} did not end the run within {CONTROL_SECONDS} s: it is killed")
        control.kill()
