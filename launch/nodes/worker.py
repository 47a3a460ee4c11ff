"""The part of a worker host: its Ray joins the head's, and stays until the run ends.

Without a control host (--on-this-node), hosts share a file in --out, which only its owner can read: the head writes
Ray's token and its versions to it. A worker reads it after the head's Ray is up, so it belongs to this run. Clocks are
compared by the Date header (RFC 9110) of HTTP responses of Ray's dashboard, which has a resolution of one second.
"""

import json
import os
import threading
import time
from dataclasses import replace
from email.utils import parsedate_to_datetime
from pathlib import Path

from launch import LaunchError
from launch.environment.network import daemon_ports
from launch.nodes import ray_node
from launch.nodes.checks import Clock, skew
from launch.nodes.ray_node import Part, authentication, joined, wait_for_head

POLL_SECONDS = 2
HEAD_SILENT_SECONDS = 20
ANSWER_SECONDS, PAUSE_SECONDS = 3, 0.5
SECOND = 1.0  # resolution of the header: its middle is used, half of it is the uncertainty


def run(part: Part) -> int:
    """Join the head's Ray and stay until an order to end or the end of the head's job; return the exit code."""
    plan, ended = part.plan, part.orders.ended
    head = wait_for_head(plan, ended, part.deadline)
    if head is None:
        return 0
    if part.meeting is not None:
        part.environment |= authentication(take(part.meeting, part.facts["versions"]))
        ray_node.adopt_token(part.environment)
        compare(head, int(plan.ports["dashboard"]), ended, part.deadline)
    part.start_ray(replace(plan, head=head), daemon_ports(plan.ports)["node-manager-port"])
    return follow(part, head)


def follow(part: Part, head: str) -> int:
    """Wait until the control host orders the end or, without one, the head's job has ended; return the exit code.

    Raises:
        LaunchError: this host's Ray has ended, or the head does not answer.
    """
    dashboard = f"http://{joined(head, part.plan.ports['dashboard'])}"
    answered = time.monotonic()
    while not part.orders.ended.wait(POLL_SECONDS):
        part.ray.check()
        if part.meeting is None:
            continue
        try:
            states = [job.status for job in ray_node.client(dashboard).list_jobs() if job.submission_id]
        except ray_node.trouble() as error:
            silent = time.monotonic() - answered
            if silent > HEAD_SILENT_SECONDS:
                raise LaunchError(f"the head has not answered for {silent:.0f} s ({dashboard}: {error})") from None
            continue
        answered = time.monotonic()
        if ended := [state.value for state in states if state.is_terminal()]:
            part.emit("job", status=ended[0], message="")
            return 0 if ended[0] == "SUCCEEDED" else 1
    return 0


def share(file: Path, token: str, versions: dict[str, str]) -> None:
    """Write Ray's token and the head's versions to the meeting file, replacing an earlier run's."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        json.dump({"token": token, "versions": versions}, opened)


def take(file: Path, versions: dict[str, str]) -> str:
    """Return the token from the head's meeting file, after comparing versions; called by a worker.

    Raises:
        LaunchError: the file does not exist (the folder is not shared), belongs to another user, or the versions
            differ.
    """
    try:
        shared = json.loads(file.read_text())
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be read ({error.strerror}), but the head has stored Ray's token there: --out must "
            "be on shared storage on every host (`shared` in the inventory), and the same user must run on "
            "all"
        ) from None
    if lines := skew(shared["versions"], versions):
        raise LaunchError(f"version skew: {'; '.join(lines)}")
    return shared["token"]


def compare(host: str, port: int, ended: threading.Event, deadline: float) -> None:
    """Compare the clocks as soon as the dashboard responds, which is soon after the head's Ray is up.

    Raises:
        LaunchError: the clocks differ too much, or there was no response before the deadline (in time.monotonic()).
    """
    reason = "not asked"
    while time.monotonic() < deadline and not ended.is_set():
        asked = time.time()
        try:
            date = date_of(host, port)
        except OSError as error:
            reason = error.strerror or str(error)
            ended.wait(PAUSE_SECONDS)
            continue
        if wrong := measured(asked, time.time(), date).wrong("the head's"):
            raise LaunchError(wrong)
        return
    if not ended.is_set():
        raise LaunchError(f"the dashboard of Ray's head, {host} port {port}, does not answer: {reason}")


def measured(asked: float, answered: float, date: str) -> Clock:
    """Compare this host's clock with the head's, whose response has this `date`."""
    way = (answered - asked) / 2
    return Clock(asked + way - (parsedate_to_datetime(date).timestamp() + SECOND / 2), way + SECOND / 2)


def date_of(host: str, port: int) -> str:
    """Return the Date header of a response of any status; raise RequestException without one."""
    import requests

    with requests.Session() as session:
        session.trust_env = False  # hosts of a run connect without a proxy
        return session.head(f"http://{joined(host, port)}", timeout=ANSWER_SECONDS).headers["Date"]
