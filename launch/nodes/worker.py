"""The part of a worker host: its Ray joins the head's, and stays until the head's job has ended."""

import time
from dataclasses import replace

from launch import LaunchError
from launch.environment.network import daemon_ports
from launch.nodes import meeting, ray_node
from launch.nodes.checks import versions
from launch.nodes.ray_node import Part, authentication, joined, wait_for_head
from launch.ray_jobs.cluster import ENDED, Cluster

POLL_SECONDS = 2
HEAD_SILENT_SECONDS = 20


def run(part: Part) -> int:
    """Join the head's Ray and stay until the part is to end or the head's job has ended; return the exit code."""
    plan, ended, port = part.plan, part.launcher.ended, int(part.plan.ports["dashboard"])
    head = wait_for_head(plan, ended, part.deadline)
    if head is None:
        return 0
    part.environment |= authentication(meeting.take(plan, versions()))
    ray_node.adopt_token(part.environment)
    meeting.compare_clocks(head, port, ended, part.deadline)
    part.start_ray(replace(plan, head=head), daemon_ports(plan.ports)["node-manager-port"])
    part.formed = True
    part.launcher.status(joined=1, doing="Ray runs here", formed=True)
    cluster = part.connect(f"http://{joined(head, port)}")
    return 0 if cluster is None else follow(part, cluster)


def follow(part: Part, cluster: Cluster) -> int:
    """Wait until the part is to end, or the head's job has ended; return the exit code.

    Raises:
        LaunchError: this host's Ray has ended, or the head does not answer.
    """
    answered = time.monotonic()
    while not part.launcher.ended.wait(POLL_SECONDS):
        part.ray.check()
        try:
            states = [job["status"] for job in cluster.get("/api/jobs/") if job["submission_id"]]
        except OSError as error:  # the errors of requests are OSErrors
            if (silent := time.monotonic() - answered) > HEAD_SILENT_SECONDS:
                raise LaunchError(f"the head has not answered for {silent:.0f} s: {error}") from None
            continue
        answered = time.monotonic()
        if over := [state for state in states if state in ENDED]:
            part.launcher.status(job=over[0])
            return 0 if over[0] == "SUCCEEDED" else 1
    return 0
