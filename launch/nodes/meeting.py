"""The file through which the hosts of a run meet: Ray's token and the head's versions, in the shared output folder.

Only its owner can read it. A worker reads it after the head's Ray is up, so it belongs to this run. Clocks are compared
by the Date header (RFC 9110) of a response of Ray's dashboard, which has a resolution of one second.
"""

import json
import os
import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import requests

from launch import LaunchError
from launch.nodes.checks import skew
from launch.nodes.ray_node import joined
from launch.plan import NodePlan

NAME = ".ray_meeting.json"
ALLOWED_SECONDS = 5.0  # maximum difference between clocks
SECOND = 1.0  # resolution of the header: its middle is used, half of it is the uncertainty
ANSWER_SECONDS, PAUSE_SECONDS = 3, 0.5


def share(plan: NodePlan, token: str, versions: dict[str, str]) -> None:
    """Write Ray's token and the head's versions, replacing an earlier run's file."""
    file = Path(plan.out, NAME)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        json.dump({"token": token, "versions": versions}, opened)


def take(plan: NodePlan, versions: dict[str, str]) -> str:
    """Return the token from the head's file, after comparing versions; called by a worker.

    Raises:
        LaunchError: the file does not exist (the folder is not shared), belongs to another user, or the versions
            differ.
    """
    file = Path(plan.out, NAME)
    try:
        shared = json.loads(file.read_text())
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be read ({error.strerror}), but the head has stored Ray's token there: --out must be on "
            "shared storage on every host (`shared` in the inventory), and the same user must run on all"
        ) from None
    if lines := skew(shared["versions"], versions):
        raise LaunchError(f"version skew: {'; '.join(lines)}")
    return shared["token"]


def compare_clocks(host: str, port: int, ended: threading.Event, deadline: float) -> None:
    """Compare the clocks as soon as the head's dashboard responds, which is soon after its Ray is up.

    Raises:
        LaunchError: the clocks differ too much, or there was no response before the deadline (in time.monotonic()).
    """
    reason = "not asked"
    while time.monotonic() < deadline and not ended.is_set():
        asked = time.time()
        try:
            date = date_of(host, port)
        except OSError as error:  # the errors of requests are OSErrors
            reason = error.strerror or str(error)
            ended.wait(PAUSE_SECONDS)
            continue
        if wrong := clock_skew(asked, time.time(), date):
            raise LaunchError(wrong)
        return
    if not ended.is_set():
        raise LaunchError(f"the dashboard of Ray's head, {host} port {port}, does not answer: {reason}")


def clock_skew(asked: float, answered: float, date: str) -> str | None:
    """Describe the difference between this clock and the head's, if it exceeds the limit despite the round trip.

    Args:
        asked, answered: times of the request and its response by this clock.
        date: the Date header of the response.
    """
    way = (answered - asked) / 2
    offset = asked + way - (parsedate_to_datetime(date).timestamp() + SECOND / 2)
    if abs(offset) - way - SECOND / 2 <= ALLOWED_SECONDS:
        return None
    ahead = "ahead of" if offset > 0 else "behind"
    return f"clock skew: its clock is {abs(offset):.0f} s {ahead} the head's: set it (chrony, ntpd)"


def date_of(host: str, port: int) -> str:
    """Return the Date header of a response of any status; raise RequestException without a response."""
    with requests.Session() as session:
        session.trust_env = False  # hosts of a run connect without a proxy
        return session.head(f"http://{joined(host, port)}", timeout=ANSWER_SECONDS).headers["Date"]
