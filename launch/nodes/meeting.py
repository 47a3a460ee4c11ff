"""How a worker meets the head: Ray's token, the versions of their software, and their clocks.

A launcher that starts all hosts sends each of them the token. Hosts that are started one by one (--on-this-node) share
it in a file of the output folder, which only its owner can read, until all have joined. The head's versions are labels
of its Ray node.
"""

import re
import time
from email.utils import parsedate_to_datetime
from pathlib import Path

import requests

from launch import LaunchError
from launch.nodes.ray_node import HOST
from launch.plan import NodePlan
from launch.ray_jobs.cluster import Cluster
from launch.system import private

NAME = ".ray_token"
ALLOWED_SECONDS = 5  # maximum difference between clocks
ANSWER_SECONDS = 5


def token_file(plan: NodePlan) -> Path:
    """Return the path of the file with Ray's token."""
    return Path(plan.out, NAME)


def share(plan: NodePlan, token: str) -> None:
    """Write Ray's token, replacing the file of a run that was killed."""
    file = token_file(plan)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with private.open_file(file, "x") as opened:
        opened.write(token)


def take(plan: NodePlan) -> str:
    """Return Ray's token from the head's file.

    Raises:
        LaunchError: the file cannot be read; the folder may not be shared.
    """
    try:
        return token_file(plan).read_text()
    except OSError as error:
        raise LaunchError(
            f"{token_file(plan)} cannot be read ({error.strerror}), but the head has stored Ray's token there: --out "
            "must be on shared storage on every host (`shared` in the inventory), and the same user must run on all"
        ) from None


def labels(versions: dict[str, str]) -> dict[str, str]:
    """Return versions as labels of a Ray node, which consist of letters, digits and three other characters."""
    return {re.sub(r"[^\w.-]", "_", name): re.sub(r"[^\w.-]", "_", version) for name, version in versions.items()}


def differences(cluster: Cluster, versions: dict[str, str]) -> list[str]:
    """Return how this host, which has these versions, differs from the head, one line each.

    Raises:
        LaunchError, OSError: the head does not answer, or has no Ray node yet.
    """
    head = next((node for node in cluster.listed("nodes") if node["is_head_node"]), None)
    if head is None:
        raise LaunchError("it has no Ray node yet")
    asked = time.time()
    date = requests.head(cluster.address, timeout=ANSWER_SECONDS).headers["Date"]
    clocks, software = clock_skew(asked, time.time(), date), skew(head["labels"], labels(versions))
    return [*([clocks] if clocks else []), *([f"version skew: {'; '.join(software)}"] if software else [])]


def skew(head: dict[str, str], other: dict[str, str]) -> list[str]:
    """Return the labels in which a host differs from the head: 'ray 2.60.0, the head has 2.59.0'."""
    names = [name for name in {**head, **other} if name != HOST and "/" not in name]  # Ray's own are named ray.io/..
    return [
        f"{name} {other.get(name, 'missing')}, the head has {head.get(name, 'none')}"
        for name in names
        if head.get(name) != other.get(name)
    ]


def clock_skew(asked: float, answered: float, date: str) -> str | None:
    """Describe the difference between this clock and the head's if it exceeds the limit, whenever the head answered.

    Args:
        asked, answered: times of the request and its response by this clock.
        date: the Date header (RFC 9110) of the response, in whole seconds.
    """
    theirs = parsedate_to_datetime(date).timestamp()
    ahead, behind = asked - (theirs + 1), theirs - answered
    if max(ahead, behind) <= ALLOWED_SECONDS:
        return None
    words = f"{ahead:.0f} s ahead of" if ahead > 0 else f"{behind:.0f} s behind"
    return f"clock skew: its clock is at least {words} the head's: set it (chrony, ntpd)"
