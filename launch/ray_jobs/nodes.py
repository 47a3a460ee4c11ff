"""Checks whether the nodes of a Ray cluster meet the requirements of a run, with a Ray job that runs doctor's checks.

Only nodes with enough devices are checked, since nothing of the run is placed on the others, except that the driver
runs on the head.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ascend_quant.processes.cause import cause_in
from launch import LaunchError
from launch.doctor.checking import Finding, HostReport, Report, findings_of
from launch.doctor.examination import BEFORE_RAY
from launch.doctor.hosts import EXAMINE_SECONDS, TOGETHER
from launch.plan import Wanted, dry_run
from launch.plan.wanted import EPHEMERAL
from launch.ray_jobs import sources
from launch.ray_jobs.cluster import Cluster
from launch.ray_jobs.look import MARK, REPORTS, REQUESTS
from launch.ray_jobs.plan import RayPlan
from launch.recipes.stacks import pins

START_SECONDS = 60  # time for the job to start
STOPPING = {*BEFORE_RAY, "hosts.reach", *TOGETHER}
# Without this, older versions of Ray hide the devices from tasks that request none.
KEEPS_DEVICES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}


def examine(cluster: Cluster, plan: RayPlan, submission: str, given_up: Callable[[], bool] = lambda: False) -> Report:
    """Run doctor's checks on each node with enough devices; stop waiting if `given_up` returns True.

    Raises:
        LaunchError: the checks could not run; the message contains the cause.
    """
    # verl requests GPUs on stack cpu, too.
    recipe, kind = plan.recipe, "NPU" if pins(plan.recipe.stack).devices == "npu" else "GPU"
    found = sorted(cluster.listed("nodes"), key=lambda node: node["node_ip"])
    alive = [node for node in found if node["state"] == "ALIVE"]
    counts = {node["node_ip"]: int(node["resources_total"].get(kind, 0)) for node in alive}
    fit = [node for node in alive if counts[node["node_ip"]] >= recipe.devices_per_node]
    if len(fit) < recipe.nodes:
        has = ", ".join(f"{address} {count}" for address, count in counts.items())
        what = f"{recipe.name} needs {recipe.nodes} nodes with {recipe.devices_per_node} {kind} each; Ray has {has}"
        fix = "add nodes to the Ray cluster, or use fewer: trainer.nnodes=.. trainer.n_gpus_per_node=.."
        return Report([], [Finding("error", "devices.present", what, fix)])
    addresses = [node["node_ip"] for node in fit]
    wanted = {
        node["node_id"]: replace(
            plan.wanted, targets=[(other, EPHEMERAL) for other in addresses if other != node["node_ip"]]
        )
        for node in fit
    }
    reports = [
        replace(report, host=address)
        for report, address in zip(ask(cluster, plan, submission, wanted, given_up), addresses, strict=True)
    ]
    for report in reports:
        report.traits.pop("devices", None)  # nodes may have different numbers of devices, if each has enough
    return Report(reports, findings_of(TOGETHER, reports, {}))


def ask(
    cluster: Cluster, plan: RayPlan, submission: str, wanted: dict[str, Wanted], given_up: Callable[[], bool]
) -> list[HostReport]:
    """Run look.py as a Ray job and return the nodes' reports."""
    command = ["python", "-m", "launch.ray_jobs.look", REQUESTS.dump_json(wanted).decode()]
    with TemporaryDirectory() as folder:
        sources.fill(Path(folder), plan.job.files)  # the run's own files, so that Ray uploads them once
        cluster.submit(submission, plan.run, command, working_dir=folder, env_vars=KEEPS_DEVICES)
    try:
        info = cluster.wait(submission, START_SECONDS + EXAMINE_SECONDS, given_up)
    except LaunchError:
        cluster.ask_to_stop(submission)
        raise
    lines = cluster.get(f"/api/jobs/{submission}/logs")["logs"].splitlines()
    if answer := next((line for line in lines if line.startswith(MARK)), None):
        return REPORTS.validate_json(answer.removeprefix(MARK))
    raised = cause_in(lines)
    why = raised.text if raised else info["message"]
    where = "Jobs run the `python` that was on PATH at `ray start` on the head; it needs the stack's packages"
    raise LaunchError(f"doctor's checks could not run on the nodes: {why}. {where}")


def lines_of(report: Report) -> tuple[list[str], list[str]]:
    """Return the problems that would stop a run, and all others; one line each, with the nodes and the fix."""
    stopping, other = [], []
    for one, hosts in report.where.items():
        lines = stopping if one.level == "error" and one.check in STOPPING else other
        if one.level != "ok":
            lines.append(": ".join(filter(None, [", ".join(hosts), one.what, one.fix])))
    return stopping, other


def described(plan: RayPlan, cluster: Cluster) -> dict[str, Any]:
    """Describe the plan as plain values, without secrets, with the problems that the nodes have."""
    problems, found = lines_of(examine(cluster, plan, f"{plan.run}-nodes"))
    return {
        "run": plan.run,
        "recipe": plan.recipe.name,
        "stack": plan.recipe.stack,
        "out": plan.wanted.out,
        "ray": f"Ray {cluster.version} at {cluster.address}",
        "job": dry_run.job(plan.job),
        "notes": [*plan.notes, *found],
        "problems": problems,
    }
