"""Ray on this host: raylets that run, whose they are, and which head they belong to. Ray itself is not asked."""

import re

import psutil

from launch.doctor.facts import RayNode

RUN_VARIABLE = "ASCEND_QUANT_RUN"  # in the environment of every process of a run of ours


def ray_nodes() -> tuple[RayNode, ...]:
    """The raylets of this host that can be seen."""
    nodes = []
    for process in psutil.process_iter(["pid", "name", "cmdline", "username"]):
        if process.info["name"] == "raylet":
            nodes.append(_node(process))
    return tuple(nodes)


def _node(process: psutil.Process) -> RayNode:
    head = re.search(r"--gcs-address=(\S+)", " ".join(process.info["cmdline"] or ()))
    user = process.info["username"] or "?"
    return RayNode(process.info["pid"], user, head[1] if head else "an unknown head", run_of(process))


def run_of(process: psutil.Process) -> str | None:
    """The id of the run that a process belongs to; None also where that cannot be seen: another user's, or ended."""
    try:
        return process.environ().get(RUN_VARIABLE)
    except psutil.Error:
        return None
