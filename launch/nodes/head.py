"""The head's part: Ray's head, the members, and the job once all of them are there."""

import threading
import time

from launch.errors import LaunchError
from launch.nodes import members, ray_node
from launch.nodes.events import Emit
from launch.nodes.failures import failures
from launch.nodes.job import RunningJob, Tail
from launch.nodes.meeting import share
from launch.nodes.part import Part
from launch.nodes.ray_node import RayNode, joined
from launch.plan.fields import NodePlan

FAILED = "FAILED"  # Ray's word for a job whose driver has ended with another code than 0
POLL_SECONDS = 0.5
ASK_SECONDS = 2
RAY_SILENT_SECONDS = 60
LEAVE_SECONDS = 20
REPORT_SECONDS = 1.5  # workers tell Ray every second what has failed


def run(part: Part) -> int:
    """Start the head, wait for the members, run the job; returns the exit code."""
    plan, began = part.plan, time.time()
    known = members.of_plan(plan)
    if part.meeting is not None:
        share(part.meeting, part.environment["RAY_AUTH_TOKEN"], part.facts["versions"])
    part.start_ray(plan, int(plan.ports["dashboard"]))
    dashboard = f"http://{joined(part.checked.wire.address, plan.ports['dashboard'])}"
    head = Head(plan, known, part.ray, dashboard, part.emit, began)
    code = head.follow(part.orders.ended)
    if part.meeting is not None and len(plan.members) > 1:
        head.wait_until_alone()
    return code


class Head:
    """The head's Ray, asked every two seconds."""

    def __init__(
        self, plan: NodePlan, known: members.Members, ray: RayNode, dashboard: str, emit: Emit, began: float
    ) -> None:
        self.plan, self.members, self.ray, self.dashboard, self.emit = plan, known, ray, dashboard, emit
        self.job: RunningJob | None = None
        self.tail: Tail | None = None
        self.status = ""
        self.asked, self.began = 0.0, began
        self.answered = time.monotonic()

    def follow(self, ended: threading.Event) -> int:
        """Until the job or the run ends; a job that is to end is told so."""
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
        """Ask Ray who is there and how the job is; the exit code when it has ended."""
        if time.monotonic() - self.asked < ASK_SECONDS:
            return None
        self.asked = time.monotonic()
        try:
            code = self.look()
        except ray_node.trouble() as error:
            silent = time.monotonic() - self.answered
            if silent > RAY_SILENT_SECONDS:
                raise LaunchError(f"Ray's dashboard does not answer for {silent:.0f} s: {error}") from None
            return None
        self.answered = time.monotonic()
        return code

    def look(self) -> int | None:
        """One question: of the job first, since workers may leave as soon as it has ended."""
        if self.job is not None and (code := self.look_at_job()) is not None:
            return code
        if self.members.look(members.nodes(self.dashboard)):
            self.emit("members", joined=sorted(self.members.joined), lost=list(self.members.lost.items()))
        if self.job is None and len(self.members.joined) == len(self.plan.members):
            self.job = RunningJob(self.dashboard, self.plan, self.began)
            self.tail = Tail(self.job.log)
        return None

    def look_at_job(self) -> int | None:
        """Tell how the job is; the exit code when it has ended."""
        status, over, message = self.job.state()
        if over:
            self.pass_on_log(last=True)
            if status == FAILED:
                self.tell_failures()
        if status != self.status:
            self.status = status
            self.emit("job", status=status, message=message)
        return (0 if status == "SUCCEEDED" else 1) if over else None

    def pass_on_log(self, last: bool = False) -> None:
        """The driver's new lines, to the control host."""
        for line in self.tail.lines(last) if self.tail else []:
            self.emit("log", source="driver", line=line)

    def tell_failures(self) -> None:
        """What has failed in Ray, as far as it can be asked: the logs of the hosts tell something too."""
        try:
            found = failures(self.dashboard, self.members)
            if not found:
                time.sleep(REPORT_SECONDS)
                found = failures(self.dashboard, self.members)
        except ray_node.trouble() as error:
            self.emit("note", line=f"Ray does not say what has failed: {error}")
            return
        self.emit("failures", found=found)

    def stop_job(self) -> None:
        """The driver may write its last words."""
        try:
            self.job.stop()
        except ray_node.trouble() as error:
            self.emit("note", line=f"the job could not be told to stop, and is ended with Ray: {error}")
        self.pass_on_log(last=True)

    def wait_until_alone(self) -> None:
        """Workers that ask how the job has ended must get their answer before the head goes, whatever it was told."""
        deadline = time.monotonic() + LEAVE_SECONDS
        while time.monotonic() < deadline:
            time.sleep(1)
            try:
                self.members.look(members.nodes(self.dashboard))
            except ray_node.trouble():
                continue  # asked again until the time is over
            if len(self.members.joined) <= 1:
                return
