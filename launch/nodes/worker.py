"""A worker's part: Ray joined to the head's, until the run ends."""

import time
from dataclasses import replace

from launch.errors import LaunchError
from launch.nodes import ray_node, rendezvous
from launch.nodes.ports import daemon_ports
from launch.nodes.ray_node import Part, authentication, joined, wait_for_head

POLL_SECONDS = 1
ASK_SECONDS = 3
HEAD_SILENT_SECONDS = 20


def run(part: Part) -> int:
    """Join, and stay until the end is ordered or, with no control host, the head's job has ended; the exit code."""
    plan, ended = part.plan, part.orders.ended
    head = wait_for_head(plan, ended, part.deadline)
    if head is None:
        return 0
    if part.meeting is not None:
        part.environment |= authentication(rendezvous.take(part.meeting, part.facts["versions"]))
        ray_node.adopt_token(part.environment)
        rendezvous.compare(head, int(plan.ports["dashboard"]), ended, part.deadline)
    part.start_ray(replace(plan, head=head), daemon_ports(plan.ports)["node-manager-port"])
    return follow(part, head) if part.meeting is not None else stay(part)


def stay(part: Part) -> int:
    """Until the control host orders the end."""
    while not part.orders.ended.wait(POLL_SECONDS):
        part.ray.check()
    return 0


def follow(part: Part, head: str) -> int:
    """Until the head's job has ended, too."""
    job = HeadJob(f"http://{joined(head, part.plan.ports['dashboard'])}")
    while not part.orders.ended.wait(POLL_SECONDS):
        part.ray.check()
        if (state := job.ask()) is not None:
            part.emit("job", status=state, message="")
            return 0 if state == "SUCCEEDED" else 1
    return 0


class HeadJob:
    """The job on the head, asked for by Ray's job API."""

    def __init__(self, dashboard: str) -> None:
        self.dashboard = dashboard
        self.asked = self.answered = time.monotonic()

    def ask(self) -> str | None:
        """How the job has ended, or None. Raises LaunchError when the head has not answered for a while."""
        if time.monotonic() - self.asked < ASK_SECONDS:
            return None
        self.asked = time.monotonic()
        try:
            states = [job.status for job in ray_node.client(self.dashboard).list_jobs() if job.submission_id]
        except ray_node.trouble() as error:
            silent = time.monotonic() - self.answered
            if silent > HEAD_SILENT_SECONDS:
                raise LaunchError(f"the head does not answer for {silent:.0f} s ({self.dashboard}: {error})") from None
            return None
        self.answered = time.monotonic()
        return next((state.value for state in states if state.is_terminal()), None)
