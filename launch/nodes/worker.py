"""The part of a worker host: its Ray joins the head's, and stays until the head's job has ended."""

import socket
import time
from dataclasses import replace

from launch import LaunchError
from launch.nodes import meeting
from launch.nodes.checks import versions
from launch.nodes.ray_node import Part, joined, start_command
from launch.ray_jobs.cluster import ENDED, Cluster, connect

POLL_SECONDS, REACH_SECONDS = 2, 2
HEAD_SILENT_SECONDS = 20


def run(part: Part) -> int:
    """Join the head's Ray and stay until the part is to end or the head's job has ended; return the exit code.

    Raises:
        LaunchError: the head cannot be reached, or software or clock differ from the head's.
    """
    plan = part.plan
    where = joined(plan.head, plan.ports["ray"])
    firewall = f"Ray's head {where} cannot be reached from this host: is there a firewall between the hosts?"
    met = part.until(lambda: meet(part), firewall)
    if met is None:
        return 0
    address, cluster, differences = met
    if differences:
        raise LaunchError("\n".join(differences))
    part.start_ray(start_command(replace(plan, head=address), part.checked.wire, len(part.checked.devices)))
    part.launcher.status(joined=1, doing="Ray was started here")
    return follow(part, cluster)


def meet(part: Part) -> tuple[str, Cluster, list[str]]:
    """Connect to the head; return its address, its client, and how this host differs from it.

    Raises:
        LaunchError, OSError, RuntimeError: the head is not there yet. The status line shows why, since the reason may
            be one that does not pass, such as a wrong name, or an output folder that is not shared.
    """
    try:
        with socket.create_connection((part.plan.head, int(part.plan.ports["ray"])), REACH_SECONDS) as reached:
            address = reached.getpeername()[0]
        part.adopt(part.token or meeting.take(part.plan))
    except (LaunchError, OSError) as error:
        part.launcher.status(doing=f"waiting for {part.plan.head}: {error}")
        raise
    cluster = connect(f"http://{joined(address, part.plan.ports['dashboard'])}")
    return address, cluster, meeting.differences(cluster, versions())


def follow(part: Part, cluster: Cluster) -> int:
    """Wait until the part is to end, or the head's job has ended; return the exit code.

    Raises:
        LaunchError: this host's Ray has ended, or the head does not answer.
    """
    answered = time.monotonic()
    while not part.launcher.ended.wait(POLL_SECONDS):
        part.check_ray()
        try:
            states = [job["status"] for job in cluster.get("/api/jobs/") if job["submission_id"]]
        except OSError as error:  # the errors of requests are OSErrors
            if (silent := time.monotonic() - answered) > HEAD_SILENT_SECONDS:
                raise LaunchError(f"the head has not answered for {silent:.0f} s: {error}") from None
            continue
        answered = time.monotonic()
        if states:  # the head submits its job once all hosts have joined
            part.formed = True
            part.launcher.status(job=states[0], formed=True)
            if states[0] in ENDED:
                return 0 if states[0] == "SUCCEEDED" else 1
    return 0
