"""The output of `train --ray --dry-run`: what would be submitted, and what the cluster's nodes lack for it."""

from typing import Any

from launch import LaunchError
from launch.plan.dry_run import job, job_lines
from launch.plan.validate import problems_of
from launch.ray_jobs import nodes
from launch.ray_jobs.cluster import Cluster
from launch.ray_jobs.plan import RayPlan


def described(plan: RayPlan, cluster: Cluster) -> dict[str, Any]:
    """Describe the plan as plain values, without secrets; a small job looks at the nodes.

    Raises:
        LaunchError: verl would refuse the settings, or the nodes could not be looked at.
    """
    refused, unchecked = problems_of(plan.recipe.stack, plan.job.entrypoint)
    if refused:
        raise LaunchError("\n".join(refused))
    found = nodes.look(cluster, plan, f"{plan.run}-nodes")
    lacking = nodes.lacking_ours(found)
    brought = [f"this project is brought as a wheel: {', '.join(lacking)} do not have these sources"] if lacking else []
    return {
        "run": plan.run,
        "recipe": plan.recipe.name,
        "stack": plan.recipe.stack,
        "out": plan.out,
        "ray": {"address": cluster.address, "version": cluster.version},
        "notes": [*plan.notes, *filter(None, [unchecked]), *nodes.notes(found, plan.recipe.stack), *brought],
        "nodes": nodes.described(found),
        "problems": nodes.problems(found, plan),
        "job": job(plan.job),
    }


def text(tree: dict[str, Any]) -> str:
    """Format what `described` made for people."""
    return "\n".join(
        [
            f"run {tree['run']}: {tree['recipe']} on stack {tree['stack']}",
            f"writes to {tree['out']}",
            f"Ray {tree['ray']['version']} at {tree['ray']['address']}",
            *(f"note: {note}" for note in tree["notes"]),
            *(f"node {one['address']}: {_counted(one['resources'])}" for one in tree["nodes"]),
            *job_lines(tree["job"]),
            "",
            *(tree["problems"] or ["nothing stands in the way: the same command without --dry-run starts the run"]),
        ]
    )


def _counted(resources: dict[str, float]) -> str:
    """Return the CPUs and devices that Ray counts on a node."""
    return ", ".join(f"{resources.get(kind, 0):g} {kind}" for kind in ("CPU", "GPU", "NPU") if kind in resources)
