"""Is this host's clock the head's, where no control host compares them (--on-this-node)? By the date of an answer.

Every HTTP answer of Ray's dashboard names the second in which it was made (Date, RFC 9110).
"""

import http.client
import threading
import time
from email.utils import parsedate_to_datetime

from launch.clock import Clock
from launch.errors import LaunchError

ANSWER_SECONDS, PAUSE_SECONDS = 3, 0.5
SECOND = 1.0  # a date names a whole one: its middle is taken, and half of it is uncertain


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
