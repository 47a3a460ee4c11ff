"""`python -m launch node`: a host's part of a run, from the checks to the end of all processes that it started.

The task is one line of JSON on stdin, and events are written to stdout: see protocol.py. Other tasks are this host's
facts (for --dry-run), the doctor's examination, and the end of a run (for `stop`). At the end of the run, Ray's logs
are sent to the control host: the end of each file, the newest first.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import psutil

from ascend_quant.terminal.exits import DONE, FAILED, NOT_FORMED, WRONG_USE
from launch import LaunchError, port_guard
from launch.doctor import hosts
from launch.environment import network
from launch.nodes import head, ray_node, worker
from launch.nodes.checks import Checked, check, compared, find, kernel_kills
from launch.nodes.protocol import Emit, Orders, emitter
from launch.nodes.ray_node import Part, variables
from launch.plan import NodePlan
from launch.system.processes import OPEN_FILES, end_all, end_run, of_run

NODE_SECONDS = 30
LARGEST = 256 << 10  # bytes sent from the end of a log
ALL = 16 << 20  # bytes sent of all logs together


def main() -> int:
    """Carry out the task; return the exit code."""
    orders = Orders()
    emit = emitter(own_stdout(), lost=lambda: orders.end("the control host has gone"))
    task = first_line(sys.stdin)
    if task is None:
        print("node: started by ./run.sh train, which tells it its task on stdin: not for use by hand", file=sys.stderr)
        return WRONG_USE
    if "run" in task:
        orders.follow(sys.stdin, emit)
        return run_node(task["run"], task["token"], emit, orders, task["meeting"])
    if "doctor" in task:
        report = hosts.answer_here(hosts.REQUEST.validate_python(task["doctor"]))
        emit("examined", report=hosts.REPORT.dump_python(report, mode="json"))
        return DONE
    if "facts" in task:
        return tell_facts(task["facts"], emit)
    return end(task["end_run"], emit)


def own_stdout() -> TextIO:
    """Return the channel to the control host; from now on, output of libraries goes to stderr."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


def first_line(stream: TextIO) -> dict | None:
    """Read the task, with a NodePlan for `run` and `facts`; None if there is no valid task."""
    try:
        task = json.loads(stream.readline())
        for kind in {"run", "facts"} & task.keys():
            task[kind] = NodePlan.from_json(json.dumps(task[kind]))
    except (AttributeError, TypeError, ValueError):
        return None
    return task


def tell_facts(plan: NodePlan, emit: Emit) -> int:
    """Emit facts for --dry-run: NIC and devices of the run in `chosen`, and `problems` that stop it."""
    checked, problems = find(plan)
    emit("checked", facts={"chosen": asdict(checked), "problems": problems})
    return DONE


def end(run: str, emit: Emit) -> int:
    """End all processes that a run has started on this host, by the run's id, for `stop`."""
    nodes = [process for process in of_run(run) if is_node(process)]
    end_all(nodes, NODE_SECONDS)  # a node process ends its own processes in order
    emit("ended", code=0, count=len(nodes) + end_run(run))
    return DONE


def is_node(process: psutil.Process) -> bool:
    """Return whether a process is `python -m launch node`."""
    try:
        return process.cmdline()[1:4] == ["-m", "launch", "node"]
    except psutil.Error:
        return False


def run_node(plan: NodePlan, token: str, emit: Emit, orders: Orders, meeting: str | None = None) -> int:
    """Check the host, run Ray on it until the job or the run has ended, and end all started processes.

    Args:
        token: Ray's token, the same on every host.
        meeting: the file through which hosts find each other without a control host (--on-this-node); a worker then
            also polls the head for the job's end.

    Returns:
        DONE, FAILED, or NOT_FORMED if the host cannot take part.
    """
    deadline = time.monotonic() + plan.join_seconds
    try:
        facts, checked = examine(plan, emit)
    except LaunchError as error:
        emit("failed", why=str(error))
        return NOT_FORMED
    emit("checked", facts=facts)
    orders.go.wait()
    if orders.ended.is_set():
        code = judged(0, orders, emit)
        emit("ended", code=code, count=0)
        return code
    place = Path(meeting) if meeting else None
    part = Part(plan, facts, checked, {}, emit, orders, place, deadline, kernel_kills())
    code = FAILED
    try:
        part.environment = prepare(part, token)
        code = judged(head.run(part) if plan.role == "head" else worker.run(part), orders, emit)
    except Exception as error:
        emit("failed", why=str(error) if isinstance(error, LaunchError) else f"{type(error).__name__}: {error}")
        if not isinstance(error, LaunchError):
            raise
    finally:
        close(part, code)
    return code


def judged(code: int, orders: Orders, emit: Emit) -> int:
    """Return the exit code; an end that the control host has not ordered is a failure, and its reason is sent."""
    if not orders.unasked:
        return code
    emit("failed", why=f"its part was ended: {orders.why}")
    return FAILED


def examine(plan: NodePlan, emit: Emit) -> tuple[dict[str, Any], Checked]:
    """Return the facts and the checks, after ending processes of an earlier attempt of this run."""
    left = end_run(plan.run)
    if left:
        emit("note", line=f"{left} processes of an earlier attempt of this run were still here: ended")
    return compared(), check(plan)


def prepare(part: Part, token: str) -> dict[str, str]:
    """Prepare the environment of Ray and make this process a client of it; return the environment."""
    plan = part.plan
    ray_node.make_folder(plan)
    environment, notes = variables(plan, part.checked, token, dict(os.environ))
    notes += open_files()
    ray_node.adopt_token(environment)
    if plan.socket_filter:
        environment = guarded(part, environment)
        notes += filter(None, [port_guard.shown()])
    for note in notes:
        part.emit("note", line=note)
    return environment


def guarded(part: Part, environment: dict[str, str]) -> dict[str, str]:
    """Add the port guard, which admits the run's hosts, to an environment."""
    hosts = part.orders.addresses
    if part.meeting is not None:  # without a control host, the other addresses are unknown
        hosts = [ip for member in part.plan.members for ip in network.resolve(member)]
    return port_guard.preloaded(port_guard.build(Path(part.plan.temp_dir), hosts), environment)


def open_files() -> list[str]:
    """Raise this process's limit of open files, which Ray inherits; return a note if that is not possible."""
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


def session_logs(temp_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield names (relative to Ray's log folder) and texts: the end of each file, the newest first."""
    folder = temp_dir / "session_latest" / "logs"
    files = [file for file in folder.rglob("*") if file.is_file() and file.stat().st_size] if folder.exists() else []
    left = ALL
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        with file.open("rb") as opened:
            opened.seek(max(0, file.stat().st_size - LARGEST))
            text = opened.read(min(LARGEST, left))
        left -= len(text)
        yield str(file.relative_to(folder)), text.decode(errors="replace")
        if left <= 0:
            return
