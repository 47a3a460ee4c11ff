"""The head's part of a run: Ray's head, the members, and the job once all of them have joined."""

import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch import LaunchError
from launch.environment import network
from launch.nodes import meeting
from launch.nodes.checks import versions
from launch.nodes.ray_node import HOST, Part, joined, start_command
from launch.plan import NodePlan
from launch.ray_jobs.cluster import Cluster, connect
from launch.ray_jobs.follow import driver_killed, passing_on, watch

POLL_SECONDS = 2
SILENT_SECONDS = 60  # a busy host's dashboard may be slow
LEAVE_SECONDS = 20
STOP_SECONDS = 8


def run(part: Part) -> int:
    """Start the head, wait for the members, run the job; return the exit code."""
    plan, wire = part.plan, part.checked.wire
    members = Members()
    if part.token is None and len(plan.members) > 1:
        meeting.share(plan, part.environment["RAY_AUTH_TOKEN"])
    try:
        part.start_ray(start_command(plan, wire, len(part.checked.devices), meeting.labels(versions())))
        dashboard = f"http://{joined(wire.address, plan.ports['dashboard'])}"
        cluster = part.until(lambda: connect(dashboard), "Ray's dashboard does not answer")
        if cluster is None or not gather(part, cluster, members):
            return 1
    finally:
        meeting.token_file(plan).unlink(missing_ok=True)
    part.formed = True
    code = run_job(part, cluster, members)
    if len(plan.members) > 1:
        wait_until_alone(cluster, members)
    return code


@dataclass
class Members:
    """The hosts that have joined the run's Ray, by their numbers in the plan.

    Attributes:
        joined: the id of the Ray node of each host that has joined.
        lost: why Ray took a host's node for dead.
    """

    joined: dict[int, str] = field(default_factory=dict)
    lost: dict[int, str] = field(default_factory=dict)

    def look(self, nodes: list[dict[str, Any]]) -> None:
        """Update from the nodes that Ray's state API lists, dead ones included. A member that died stays lost."""
        for node in nodes:
            host = int(node["labels"][HOST])
            if node["state"] == "ALIVE" and host not in self.lost:
                self.joined.setdefault(host, node["node_id"])
            elif node["state"] == "DEAD" and self.joined.get(host) == node["node_id"]:
                del self.joined[host]
                self.lost[host] = node["state_message"] or "Ray gives no reason"


def gather(part: Part, cluster: Cluster, members: Members) -> bool:
    """Wait until all members have joined; return whether they have, or the part is to end.

    Raises:
        LaunchError: a member has not joined before the deadline, with a line for each; or Ray has ended here.
    """
    plan, shown = part.plan, None
    while True:
        part.check_ray()
        members.lost.clear()  # until all have joined, a host whose Ray has died may join again
        with suppress(OSError):  # Ray's dashboard is starting, or busy
            members.look(cluster.listed("nodes"))
        missing = [address for number, address in enumerate(plan.members) if number not in members.joined]
        if missing != shown:
            shown, doing = missing, f"waiting for {', '.join(missing)}" if missing else "joined"
            part.launcher.status(joined=len(members.joined), doing=doing, formed=not missing)
        if not missing:
            return True
        if time.monotonic() > part.deadline:
            low, high = network.worker_range(plan.ports)
            why = f"its Ray has not joined: are ports {plan.ports['ray']} and {low}-{high} open between the hosts?"
            raise LaunchError("\n".join(f"{address}: {why}" for address in missing))
        if part.launcher.ended.wait(POLL_SECONDS):
            return False


def run_job(part: Part, cluster: Cluster, members: Members) -> int:
    """Submit the job and follow it until it or the run has ended; return the exit code.

    Raises:
        LaunchError: Ray has ended here, a member has died, or the dashboard does not answer.
    """
    plan, launcher = part.plan, part.launcher
    folder = write_files(plan)
    python = [sys.executable, *plan.job.entrypoint]
    cluster.submit(plan.run, plan.run, python, working_dir=str(folder), env_vars=plan.job.environment)
    with passing_on(cluster, plan.run, launcher.driver):
        info = watch(
            cluster,
            plan.run,
            ended=launcher.ended.is_set,
            status=lambda status: launcher.status(job=status),
            check=lambda: check(part, cluster, members),
            silent_seconds=SILENT_SECONDS,
        )
        if info is None:
            stop_job(part, cluster)
            return 1
    if driver_killed(info):
        launcher.error("the driver was killed by signal 9")
    elif info["status"] != "SUCCEEDED":
        launcher.note(f"the job ended: {info['status']}: {last_line(info['message'])}")
    return 0 if info["status"] == "SUCCEEDED" else 1


def check(part: Part, cluster: Cluster, members: Members) -> None:
    """Raise LaunchError if Ray has ended on this host, or on another one."""
    part.check_ray()
    with suppress(OSError):  # `watch` measures how long the dashboard does not answer
        members.look(cluster.listed("nodes"))
    if members.lost:
        lost = {part.plan.members[host]: " ".join(why.split())[:300] for host, why in members.lost.items()}
        raise LaunchError("\n".join(f"{address}: its Ray has died: {why}" for address, why in lost.items()))


def write_files(plan: NodePlan) -> Path:
    """Write the files of the job's working directory, and return it."""
    folder = Path(plan.temp_dir, "job")
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in {".run": plan.run, **plan.job.files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def last_line(message: str | None) -> str:
    """Return the last line of Ray's message about a job."""
    lines = (message or "").strip().splitlines()
    return lines[-1] if lines else "Ray gives no reason"


def stop_job(part: Part, cluster: Cluster) -> None:
    """Stop the job, so that the driver can write its last words; its actors end with Ray."""
    try:
        cluster.ask_to_stop(part.plan.run)
        cluster.wait(part.plan.run, STOP_SECONDS)
    except (LaunchError, OSError) as error:
        part.launcher.note(f"the job did not stop by itself, and is ended with Ray: {error}")


def wait_until_alone(cluster: Cluster, members: Members) -> None:
    """Wait for workers to leave: they poll the job's end, and need their answer before the head stops."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while len(members.joined) > 1 and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
        with suppress(OSError):
            members.look(cluster.listed("nodes"))
