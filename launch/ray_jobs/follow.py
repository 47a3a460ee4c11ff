"""Follows a Ray job: its driver's lines, which are passed on as they come, and its state until it has ended."""

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import requests

from launch import LaunchError
from launch.ray_jobs.cluster import ENDED, Cluster

POLL_SECONDS = 2
LAST_SECONDS = 10  # time to read the rest of the log after a job has ended
KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # exit codes of a killed driver: its own, or its shell's


@contextmanager
def passing_on(cluster: Cluster, submission: str, show: Callable[[str], None]) -> Iterator[None]:
    """Pass on the driver's lines to `show`, in a thread; at the end, its last ones."""
    over = threading.Event()
    reader = threading.Thread(target=lambda: asyncio.run(_read(cluster, submission, show, over)), daemon=True)
    reader.start()
    try:
        yield
        reader.join(LAST_SECONDS)
    finally:
        over.set()


async def _read(cluster: Cluster, submission: str, show: Callable[[str], None], over: threading.Event) -> None:
    """Read the log; a broken connection is reopened, and continues after the last line."""
    passed, rest = 0, ""  # number of characters read so far, and an incomplete line
    while not over.is_set():
        at = 0
        try:
            async for text in cluster.client.tail_job_logs(submission):
                rest += text[max(passed - at, 0) :]
                at += len(text)
                passed = max(passed, at)
                *whole, rest = rest.replace("\r", "\n").split("\n")
                for line in filter(None, whole):
                    show(line)
            break
        except (OSError, RuntimeError, aiohttp.ClientError):  # `watch` notices if the head is dead
            await asyncio.sleep(POLL_SECONDS)
    if rest:
        show(rest)


def watch(
    cluster: Cluster,
    submission: str,
    *,
    ended: Callable[[], bool],
    status: Callable[[str], None],
    silent_seconds: float,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any] | None:
    """Poll a job until it has ended; return Ray's description of it, or None once `ended` returns True.

    Args:
        status: called with the job's status at each poll.
        silent_seconds: how long the dashboard may be silent.
        check: called at each poll of a job that runs; it raises LaunchError if the run cannot go on.

    Raises:
        LaunchError: the cluster does not answer, or no longer knows the job; or `check` has raised it.
    """
    heard = time.monotonic()
    while not ended():
        time.sleep(POLL_SECONDS)
        try:
            info = cluster.job(submission)
        except requests.RequestException as error:
            if (silent := time.monotonic() - heard) > silent_seconds:
                raise LaunchError(f"Ray's head has not answered for {silent:.0f} s: {error}") from error
            check()
            continue
        heard = time.monotonic()
        if info is None:
            raise LaunchError(f"the cluster does not know job {submission} any more: its head was started anew")
        status(info["status"])
        if info["status"] in ENDED:
            return info
        check()
    return None


def driver_killed(info: dict[str, Any]) -> bool:
    """Return whether the driver of an ended job was killed, as by the kernel for lack of memory."""
    return info["driver_exit_code"] in KILLED
