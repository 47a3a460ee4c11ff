"""A run on a Ray cluster that is there: attempts, as many as restarts allow, each a Ray job, RUN-1, RUN-2.

Ctrl-C and `./run.sh stop` stop the job, and the detached actors that Ray would leave. A closed terminal or a killed
launcher leaves it running on the cluster, to be ended by `stop`; it is not restarted then. A head that has been silent
for half a minute counts as dead.
"""

import signal
import time
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import requests
from rich.console import Console

from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED
from launch import LaunchError
from launch.system.cause import Cause, of_log
from launch.cluster.attempt import Desk, Interrupt
from launch.cluster.hosts import Outcome
from launch.cluster.record import DRIVER, RUNS, Logs, Record, Status
from launch.cluster.run import METRICS, STATES, tell
from launch.plan import Job
from launch.ray_jobs import nodes, wheel
from launch.ray_jobs.cluster import ENDED, Cluster
from launch.ray_jobs.plan import RayPlan
from launch.ray_jobs.tail import Tail

ASK_SECONDS = 2
SILENT_SECONDS = 30
JOIN_SECONDS = 300  # that a restart waits for the nodes
AGAIN_SECONDS = 5
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # the driver itself, or as its shell says it
SAID = {DONE: "done", FAILED: "the run failed", NOT_FORMED: "not started", INTERRUPTED: "ended on request"}


def run(plan: RayPlan, cluster: Cluster, restarts: int) -> int:
    """Run the plan on a cluster; returns the exit code."""
    record, console = Record.begin(RUNS, run=plan.run, recipe=plan.recipe.name, ray=cluster.address), Console()
    logs, outcome = Logs(record.folder), Outcome(FAILED)
    try:
        with Status(console, 0) as status:
            desk = Desk([], "", None, record, logs, status, Interrupt((signal.SIGINT, signal.SIGTERM)))
            status.say(f"run {plan.run}; logs: {logs.folder}; to end it: Ctrl-C, or ./run.sh stop {plan.run}")
            for note in plan.notes:
                status.say(f"note: {note}")
            outcome = attempts(plan, cluster, desk, restarts)
            status.say(f"{SAID[outcome.code]}; logs: {logs.folder}")
            tell(outcome.cause, desk)
    finally:
        record.change(state=STATES[outcome.code])
        logs.close()
    return outcome.code


def attempts(plan: RayPlan, cluster: Cluster, desk: Desk, restarts: int) -> Outcome:
    """Make attempts until one does not fail or restarts are used up; returns the outcome of the last."""
    outcome = attempt(plan, cluster, desk, 1)
    for number in range(1, restarts + 1):
        if outcome.code != FAILED:
            break
        tell(outcome.cause, desk)
        desk.status.say(f"restart {number} of {restarts}")
        desk.record.change(restarts=number)
        outcome = attempt(plan, cluster, desk, number + 1)
    return outcome


def attempt(plan: RayPlan, cluster: Cluster, desk: Desk, number: int) -> Outcome:
    """Look at the nodes, submit the job, follow it to its end, and end what it leaves."""
    submission, before = f"{plan.run}-{number}", desk.logs.lines[DRIVER]
    desk.status.change(job="", step=0, doing="looking at the nodes")
    found, lines = ready(plan, cluster, desk, number)
    for line in lines:
        desk.status.say(line)
    if found is None:
        return Outcome(INTERRUPTED if desk.interrupt.count else NOT_FORMED)
    try:
        submit(plan, cluster, submission, number, nodes.lacking_ours(found))
        info = follow(cluster, submission, desk)
        if info is None:
            desk.status.change(job="", doing="ending")
            cluster.stop(submission, lambda: desk.interrupt.count > 1)
            return Outcome(INTERRUPTED)
        cluster.end_actors(submission)
    except (LaunchError, OSError) as error:  # requests' errors are OSErrors
        if desk.interrupt.count:
            desk.status.say(f"{submission} could not be stopped: {error}. Later: ./run.sh stop {plan.run}")
            return Outcome(INTERRUPTED)
        return Outcome(FAILED, cause=Cause(str(error), cluster.address))
    return verdict(info, desk.logs.folder / f"{DRIVER}.log", before, desk)


def ready(plan: RayPlan, cluster: Cluster, desk: Desk, number: int) -> tuple[nodes.Nodes | None, list[str]]:
    """Return the nodes once they have all that the run needs, with lines to tell; None in their place if they do not.

    After a failure they may come back late: a restart looks again until they do.
    """
    deadline, looks = time.monotonic() + (JOIN_SECONDS if number > 1 else 0), 0
    while True:
        looks += 1
        try:
            found = nodes.look(cluster, plan, f"{plan.run}-{number}-nodes-{looks}", lambda: desk.interrupt.count > 0)
            problems = nodes.problems(found, plan)
            if not problems:
                return found, [f"note: {line}" for line in nodes.notes(found, plan.recipe.stack)]
        except (LaunchError, OSError) as error:
            problems = [str(error)]
        if time.monotonic() > deadline or desk.interrupt.count:
            return None, problems
        time.sleep(AGAIN_SECONDS)


def submit(plan: RayPlan, cluster: Cluster, submission: str, number: int, lacking: list[str]) -> None:
    """Submit the job; with this project as a wheel where nodes lack these sources."""
    with TemporaryDirectory() as folder:
        files = Path(folder, "job")
        for name, text in {".run": plan.run, **plan.job.files}.items():
            (files / name).parent.mkdir(parents=True, exist_ok=True)
            (files / name).write_text(text)
        environment: dict[str, Any] = {"working_dir": str(files), "env_vars": variables(plan.job, number)}
        if lacking:
            environment["py_modules"] = [str(wheel.write(Path(folder)))]
        cluster.submit(submission, plan.run, ["python", *plan.job.entrypoint], environment)


def variables(job: Job, number: int) -> dict[str, str]:
    """Return the variables of an attempt: a restart has its metrics in a folder of their own."""
    if number == 1 or METRICS not in job.environment:
        return job.environment
    return job.environment | {METRICS: f"{job.environment[METRICS]}-restart{number - 1}"}


def follow(cluster: Cluster, submission: str, desk: Desk) -> dict[str, Any] | None:
    """Follow a job to its end, and return what Ray says of it; None after Ctrl-C.

    Raises:
        LaunchError: the cluster is silent, or does not know the job any more.
    """
    tail, heard, asked = Tail(cluster, submission), time.monotonic(), 0.0
    while not desk.interrupt.count:
        pass_on(tail.lines(), desk)
        now = time.monotonic()
        if now - asked < ASK_SECONDS:
            time.sleep(0.2)
            continue
        asked = now
        try:
            info = cluster.job(submission)
            heard = time.monotonic()
        except requests.RequestException as error:
            if (silent := time.monotonic() - heard) > SILENT_SECONDS:
                raise LaunchError(f"Ray's head does not answer for {silent:.0f} s: {error}") from error
            continue
        if info is None:
            raise LaunchError(f"the cluster has no job {submission} any more: its head was started anew")
        desk.status.change(job=info["status"])
        if info["status"] in ENDED:
            pass_on(tail.last(), desk)
            return info
    return None


def pass_on(lines: list[str], desk: Desk) -> None:
    """Write lines of the driver to its log, and show them."""
    for line in lines:
        desk.logs.write(DRIVER, line)
        desk.status.driver(line)


def verdict(info: dict[str, Any], log: Path, before: int, desk: Desk) -> Outcome:
    """Return the outcome of a job that has ended, by its status and its driver's exit code."""
    if info["status"] == "SUCCEEDED":
        return Outcome(DONE)
    if info["status"] == "STOPPED":
        return Outcome(INTERRUPTED)
    code, message = info["driver_exit_code"], (info["message"] or "").partition(", last available logs")[0]
    desk.status.say(f"the driver ended with {code}" if code is not None else f"Ray: {message}")
    if code in KILLED:
        return Outcome(FAILED, cause=Cause(f"the driver was killed by signal {signal.SIGKILL.value}"))
    known = None
    with suppress(FileNotFoundError):  # it has written nothing
        known = of_log(log, before)
    return Outcome(FAILED, cause=known or Cause(message))
