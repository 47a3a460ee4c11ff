"""A host's part of a run, from the checks to the end of everything that it started."""

import os
import resource
import time
from pathlib import Path
from typing import Any

from launch.errors import LaunchError
from launch.limits import OPEN_FILES
from launch.nodes import head, ray_node, worker
from launch.nodes.checks import Checked, check
from launch.nodes.events import Emit
from launch.nodes.facts import gather
from launch.nodes.failures import kernel_kills
from launch.nodes.orders import Orders
from launch.nodes.part import Part
from launch.nodes.session_logs import session_logs
from launch.nodes.variables import variables
from launch.plan.fields import NodePlan
from launch.processes import end_run

FAILED, CANNOT_JOIN = 1, 3
TOKENS_SINCE = (2, 52)


def run_node(plan: NodePlan, token: str, emit: Emit, orders: Orders, meeting: str | None = None) -> int:
    """Check the host, run Ray on it until the job or the run has ended, and end what was started.

    Args:
        token: Ray's, the same on every host.
        meeting: the file by which hosts meet that no control host reaches (--on-this-node); a worker then also
            asks the head how the job ends.

    Returns:
        0 done, 1 failed, 3 the host cannot take part.
    """
    deadline = time.monotonic() + plan.join_seconds
    try:
        facts, checked = examine(plan, emit)
    except LaunchError as error:
        emit("failed", why=str(error))
        return CANNOT_JOIN
    emit("checked", facts=facts)
    orders.go.wait()
    if orders.ended.is_set():
        code = judged(0, orders, emit)
        emit("ended", code=code, count=0)
        return code
    environment = prepare(plan, checked, token, facts, emit)
    place = Path(meeting) if meeting else None
    part = Part(plan, facts, checked, environment, emit, orders, place, deadline, kernel_kills())
    code = FAILED
    try:
        code = judged(head.run(part) if plan.role == "head" else worker.run(part), orders, emit)
    except Exception as error:
        emit("failed", why=str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}")
        if not isinstance(error, LaunchError):
            raise
    finally:
        close(part, code)
    return code


def judged(code: int, orders: Orders, emit: Emit) -> int:
    """The exit code; an end that the control host has not asked for is a failure, and it is told the reason."""
    if not orders.unasked:
        return code
    emit("failed", why=f"its part was ended: {orders.why}")
    return FAILED


def examine(plan: NodePlan, emit: Emit) -> tuple[dict[str, Any], Checked]:
    """The facts and the checks; what an earlier attempt of this run has left here is ended first."""
    left = end_run(plan.run)
    if left:
        emit("note", line=f"{left} processes of an earlier attempt of this run were still here: ended")
    facts = gather(plan.stack, plan.temp_dir)
    return facts, check(plan, facts)


def prepare(plan: NodePlan, checked: Checked, token: str, facts: dict[str, Any], emit: Emit) -> dict[str, str]:
    """The environment of Ray, and this process as a client of it."""
    environment, notes = variables(plan, checked, token, dict(os.environ))
    notes += open_files()
    ray_node.adopt_token(environment)
    ray = facts["versions"]["ray"]
    if tuple(int(part) for part in ray.split(".")[:2]) < TOKENS_SINCE:
        notes.append(f"Ray {ray} knows no tokens: whoever reaches this host's Ray ports can run code here as you")
    for note in notes:
        emit("note", line=note)
    return environment


def open_files() -> list[str]:
    """Raise this process's limit of open files, which Ray inherits; what is to be said where that is not possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = hard == resource.RLIM_INFINITY
    wanted = OPEN_FILES if unlimited else min(OPEN_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted == OPEN_FILES:
        return []
    return [f"open files: this host allows {hard}, a long run needs {OPEN_FILES}: raise `nofile` in limits.conf"]


def close(part: Part, code: int) -> None:
    """End Ray, send its logs, remove its folder."""
    count = part.ray.end() if part.ray is not None else 0
    for name, text in session_logs(Path(part.plan.temp_dir)):
        part.emit("file", name=name, text=text)
    ray_node.remove_folder(part.plan)
    part.emit("ended", code=code, count=count, kernel_kills=kernel_kills() - part.kernel_kills)
