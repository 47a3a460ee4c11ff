"""The head's part of a run: Ray's head, the members, and the job once all of them have joined.

Ray's state API reports who has joined, and whose Ray has died. The job is submitted through Ray's job API with a
working directory; its state is polled and its log followed.
"""

import shlex
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch import LaunchError
from launch.environment import network
from launch.nodes import ray_node
from launch.nodes.protocol import Emit
from launch.nodes.ray_node import Part, RayNode, client, joined
from launch.nodes.worker import share
from launch.plan import NodePlan

POLL_SECONDS = 0.5
ASK_SECONDS = 2
RAY_SILENT_SECONDS = 60
LEAVE_SECONDS = 20
STOP_SECONDS = 8
LONGEST_MESSAGE = 2000
ANSWER_SECONDS = 10


def run(part: Part) -> int:
    """Start the head, wait for the members, run the job; return the exit code."""
    plan = part.plan
    known = members_of(plan)
    if part.meeting is not None:
        share(part.meeting, part.environment["RAY_AUTH_TOKEN"], part.facts["versions"])
    part.start_ray(plan, int(plan.ports["dashboard"]))
    dashboard = f"http://{joined(part.checked.wire.address, plan.ports['dashboard'])}"
    head = Head(plan, known, part.ray, dashboard, part.emit)
    code = head.follow(part.orders.ended)
    if part.meeting is not None and len(plan.members) > 1:
        head.wait_until_alone()
    return code


@dataclass
class Members:
    """The hosts that have joined the run's Ray, and those that were lost, by their numbers in the plan."""

    addresses: list[list[str]]
    joined: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)

    def look(self, nodes: list[Any]) -> bool:
        """Update from Ray's state; return whether anything is new. A member that died stays lost."""
        before = set(self.joined), dict(self.lost)
        for node in nodes:
            host = self.number(node.node_ip)
            if host is None:
                continue
            if node.state == "ALIVE" and host not in self.lost:
                self.joined.add(host)
            elif node.state == "DEAD" and host in self.joined:
                self.joined.discard(host)
                self.lost[host] = node.state_message or "Ray gives no reason"
        return (self.joined, self.lost) != before

    def number(self, address: str) -> int | None:
        """Return the host with an address. A run on one host has no others, since Ray replaces loopback addresses."""
        if len(self.addresses) == 1:
            return 0
        return next((host for host, known in enumerate(self.addresses) if address in known), None)


class Head:
    """The supervisor of the head's Ray, its members and the job; queries Ray every two seconds."""

    def __init__(self, plan: NodePlan, known: Members, ray: RayNode, dashboard: str, emit: Emit) -> None:
        self.plan, self.members, self.ray, self.dashboard, self.emit = plan, known, ray, dashboard, emit
        self.job: RunningJob | None = None
        self.tail: Tail | None = None
        self.status = ""
        self.asked = 0.0
        self.answered = time.monotonic()

    def follow(self, ended: threading.Event) -> int:
        """Follow the run until the job or the run ends; stop a job that is still running; return the exit code."""
        while not ended.wait(POLL_SECONDS):
            self.ray.check()
            self.pass_on_log()
            code = self.ask()
            if code is not None:
                return code
        if self.job is not None:
            self.stop_job()
        return 1

    def ask(self) -> int | None:
        """Ask Ray for the members and the job's state; return the exit code once the job has ended."""
        if time.monotonic() - self.asked < ASK_SECONDS:
            return None
        self.asked = time.monotonic()
        try:
            code = self.look()
        except ray_node.trouble() as error:
            silent = time.monotonic() - self.answered
            if silent > RAY_SILENT_SECONDS:
                raise LaunchError(f"Ray's dashboard has not answered for {silent:.0f} s: {error}") from None
            return None
        self.answered = time.monotonic()
        return code

    def look(self) -> int | None:
        """Query Ray once: the job first, as workers may leave after it; submit the job when all have joined."""
        if self.job is not None and (code := self.look_at_job()) is not None:
            return code
        if self.members.look(nodes(self.dashboard)):
            self.emit("members", joined=sorted(self.members.joined), lost=list(self.members.lost.items()))
        if self.job is None and len(self.members.joined) == len(self.plan.members):
            self.job = RunningJob(self.dashboard, self.plan)
            self.tail = Tail(self.job.log)
        return None

    def look_at_job(self) -> int | None:
        """Report the job's state; return the exit code once it has ended."""
        status, over, message = self.job.state()
        if over:
            self.pass_on_log(last=True)
        if status != self.status:
            self.status = status
            self.emit("job", status=status, message=message)
        return (0 if status == "SUCCEEDED" else 1) if over else None

    def pass_on_log(self, last: bool = False) -> None:
        """Send the driver's new log lines to the control host."""
        for line in self.tail.lines(last) if self.tail else []:
            self.emit("log", source="driver", line=line)

    def stop_job(self) -> None:
        """Stop the job, letting the driver write its last words."""
        try:
            self.job.stop()
        except ray_node.trouble() as error:
            self.emit("note", line=f"the job could not be told to stop, and is ended with Ray: {error}")
        self.pass_on_log(last=True)

    def wait_until_alone(self) -> None:
        """Wait for workers to leave: they poll the job's end, and need their answer before the head stops."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(1)
            try:
                self.members.look(nodes(self.dashboard))
            except ray_node.trouble():
                continue  # retried until the timeout
            if len(self.members.joined) <= 1:
                return


class RunningJob:
    """The submitted Ray job."""

    def __init__(self, dashboard: str, plan: NodePlan) -> None:
        temp_dir, job = Path(plan.temp_dir), plan.job
        folder = temp_dir / "job"
        for name, text in {".run": plan.run, **job.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.id = plan.run
        self.client = client(dashboard)
        if self.id not in {known.submission_id for known in self.client.list_jobs()}:  # in case an answer was lost
            self.client.submit_job(
                submission_id=self.id,
                entrypoint=shlex.join([sys.executable, *job.entrypoint]),
                runtime_env={"working_dir": str(folder), "env_vars": job.environment},
            )
        # a name documented by Ray; the driver runs on the head, so its log needs no network
        self.log = temp_dir / "session_latest" / "logs" / f"job-driver-{self.id}.log"

    def state(self) -> tuple[str, bool, str]:
        """Return the job's status, whether that is final, and Ray's message."""
        info: Any = self.client.get_job_info(self.id)
        return info.status.value, info.status.is_terminal(), (info.message or "")[-LONGEST_MESSAGE:]

    def stop(self) -> None:
        """Ask the driver to end, and wait a little, since its logger may still be writing."""
        self.client.stop_job(self.id)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not self.state()[1]:
            time.sleep(0.2)


class Tail:
    """Reads new complete lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.rest = path, 0, b""

    def lines(self, last: bool = False) -> list[str]:
        """Return the lines since the last call; with `last` also an incomplete last line."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        self.offset += len(new)
        *whole, self.rest = (self.rest + new).replace(b"\r", b"\n").split(b"\n")
        if last:
            whole, self.rest = [*whole, self.rest], b""
        return [line.decode(errors="replace") for line in whole if line]


def members_of(plan: NodePlan) -> Members:
    """Resolve the addresses of a plan's members; raise LaunchError, naming the host, if a name cannot be resolved."""
    addresses = []
    for member in plan.members:
        try:
            addresses.append(network.resolve(member))
        except LaunchError as error:
            raise LaunchError(f"the head cannot resolve {member}: {error}") from None
    return Members(addresses)


def nodes(dashboard: str) -> list[Any]:
    """Return Ray's nodes, alive and dead; raise RayStateApiException or requests' errors if it does not answer."""
    from ray.util.state import list_nodes

    return list_nodes(address=dashboard, timeout=ANSWER_SECONDS, raise_on_missing_output=False)
