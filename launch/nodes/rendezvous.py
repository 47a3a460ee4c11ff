"""How hosts meet that no control host reaches (--on-this-node): Ray's token, the versions and the clock of the head.

The head leaves token and versions in a file in --out, which only its owner can read. A worker reads it when the head's
Ray is up, so it is this run's and no earlier one's. The clocks are compared by the date of an answer: every HTTP answer
of Ray's dashboard names the second in which it was made (Date, RFC 9110).
"""

import http.client
import json
import os
import threading
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

from launch.errors import LaunchError
from launch.nodes.facts import Clock, skew

ANSWER_SECONDS, PAUSE_SECONDS = 3, 0.5
SECOND = 1.0  # a date names a whole one: its middle is taken, and half of it is uncertain


def share(file: Path, token: str, versions: dict[str, str]) -> None:
    """Of the head; an earlier run's file is replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        json.dump({"token": token, "versions": versions}, opened)


def take(file: Path, versions: dict[str, str]) -> str:
    """Of a worker: the token.

    Raises:
        LaunchError: the file is not there (the folder is not shared), is another user's, or the versions differ.
    """
    try:
        shared = json.loads(file.read_text())
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be read ({error.strerror}), and the head has left Ray's token there: --out must be the "
            "same storage on every host (`shared` in the inventory), and the same user must run on all"
        ) from None
    if lines := skew(shared["versions"], versions):
        raise LaunchError(f"version skew: {'; '.join(lines)}")
    return shared["token"]


def compare(host: str, port: int, ended: threading.Event, deadline: float) -> None:
    """Compare the clocks as soon as the dashboard answers; it is up soon after the head's Ray.

    Raises:
        LaunchError: they are too far apart, or nothing answered before the deadline (of time.monotonic()).
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
    """This host's clock beside the head's, whose answer was made at `date`."""
    way = (answered - asked) / 2
    return Clock(asked + way - (parsedate_to_datetime(date).timestamp() + SECOND / 2), way + SECOND / 2)


def date_of(host: str, port: int) -> str:
    """The Date of an answer, whatever it says otherwise. Raises OSError when there is none."""
    connection = http.client.HTTPConnection(host, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
    except http.client.HTTPException as error:
        raise OSError(f"no HTTP: {error}") from error
    finally:
        connection.close()
    if date is None:
        raise OSError("an answer without a date")
    return date
