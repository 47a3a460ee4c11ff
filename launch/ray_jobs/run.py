"""A run on a Ray cluster that already exists: each attempt is a Ray job (RUN-1, RUN-2, ..), after doctor's checks.

Ctrl-C and `./run.sh stop` stop the job, and kill the detached actors that Ray would leave alive. If the terminal is
closed or the launcher is killed, the job runs until `stop`, and is not restarted if it fails. A head that has not
answered for half a minute counts as dead.
"""

import signal
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ascend_quant.processes.cause import Cause, of_log
from ascend_quant.terminal.exits import DONE, FAILED, INTERRUPTED, NOT_FORMED
from launch import LaunchError
from launch.cluster.desk import DRIVER, Desk, Outcome
from launch.cluster.record import RUNS, Record
from launch.cluster.run import conduct, variables_of
from launch.ray_jobs import nodes, sources
from launch.ray_jobs.cluster import Cluster
from launch.ray_jobs.follow import driver_killed, passing_on, watch
from launch.ray_jobs.plan import RayPlan

SILENT_SECONDS = 30
JOIN_SECONDS = 300  # time that a restart waits for the nodes
AGAIN_SECONDS = 5


def run(plan: RayPlan, cluster: Cluster, restarts: int) -> int:
    """Run the plan on a cluster and return the exit code."""
    record = Record.begin(RUNS, run=plan.run, recipe=plan.recipe.name, ray=cluster.address)
    ends = (signal.SIGINT, signal.SIGTERM)
    return conduct(record, 0, restarts, lambda desk, number: attempt(plan, cluster, desk, number), ends)


def attempt(plan: RayPlan, cluster: Cluster, desk: Desk, number: int) -> Outcome:
    """Check the nodes, submit the job, follow it until it ends, and end the actors that it leaves."""
    submission, before = f"{plan.run}-{number + 1}", desk.logs.lines[DRIVER]
    desk.status.change(job="", step=0, doing="checking the nodes")
    stopping, notes = check(plan, cluster, desk, submission, number)
    if desk.interrupt.count:
        return Outcome(INTERRUPTED)
    for line in [*(f"note: {note}" for note in [*plan.notes, *notes] if not number), *stopping]:
        desk.status.say(line)
    if stopping:
        return Outcome(NOT_FORMED)
    try:
        with TemporaryDirectory() as folder:
            sources.fill(Path(folder), plan.job.files)
            command = ["python", *plan.job.entrypoint]
            environment = variables_of(plan.job, number)
            cluster.submit(submission, plan.run, command, working_dir=folder, env_vars=environment)
        info = follow(cluster, submission, desk)
    except (LaunchError, OSError) as error:  # the errors of requests are OSErrors
        desk.status.say(f"{error}. If {submission} still runs, this stops it: ./run.sh stop {plan.run}")
        if desk.interrupt.count:
            return Outcome(INTERRUPTED)
        return Outcome(FAILED, cause=Cause(str(error), cluster.address))
    return verdict(info, desk.logs.folder / f"{DRIVER}.log", before, desk)


def check(plan: RayPlan, cluster: Cluster, desk: Desk, submission: str, number: int) -> tuple[list[str], list[str]]:
    """Return the problems that would stop the run, and notes; a restart waits for nodes that are not back yet.

    A job of an earlier attempt may still run, if only the network between launcher and head has failed: it is stopped.
    """
    deadline, looks = time.monotonic() + (JOIN_SECONDS if number else 0), 0
    while True:
        looks += 1
        try:
            if number:
                cluster.stop_run(plan.run)
            report = nodes.examine(cluster, plan, f"{submission}-nodes-{looks}", lambda: desk.interrupt.count > 0)
            stopping, notes = nodes.lines_of(report)
        except (LaunchError, OSError) as error:
            stopping, notes = [str(error)], []
        if not stopping or time.monotonic() > deadline or desk.interrupt.count:
            return stopping, notes
        time.sleep(AGAIN_SECONDS)


def follow(cluster: Cluster, submission: str, desk: Desk) -> dict[str, Any]:
    """Follow a job until it has ended, or stop it on Ctrl-C; end its actors and return Ray's description of it.

    Raises:
        LaunchError, OSError: the cluster does not answer, or no longer knows the job.
    """

    def show(line: str) -> None:
        desk.logs.write(DRIVER, line)
        desk.status.driver(line)

    with passing_on(cluster, submission, show):
        info = watch(
            cluster,
            submission,
            ended=lambda: desk.interrupt.count > 0,
            status=lambda status: desk.status.change(job=status),
            silent_seconds=SILENT_SECONDS,
        )
        if info is not None:
            try:
                cluster.end_actors(info)
            except (LaunchError, OSError) as error:  # the job's own end is the run's
                desk.status.say(f"{error}. Later: ./run.sh stop {desk.record.run}")
            return info
        desk.status.change(job="", doing="ending")
        cluster.stop(submission, lambda: desk.interrupt.count > 1)
        return cluster.wait(submission, 0)


def verdict(info: dict[str, Any], log: Path, before: int, desk: Desk) -> Outcome:
    """Return the outcome of an ended job, from its status, its driver's exit code and its log."""
    if info["status"] == "SUCCEEDED":
        return Outcome(DONE)
    if info["status"] == "STOPPED":
        return Outcome(INTERRUPTED)
    code, message = info["driver_exit_code"], (info["message"] or "").partition(", last available logs")[0]
    desk.status.say(f"the driver ended with {code}" if code is not None else f"Ray: {message}")
    if driver_killed(info):
        return Outcome(FAILED, cause=Cause(f"the driver was killed by signal {signal.SIGKILL.value}"))
    known = of_log(log, before) if log.exists() else None
    return Outcome(FAILED, cause=known or Cause(message))
