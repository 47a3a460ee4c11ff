"""`python -m launch node`: a host's part of a run, from the checks to the end of all processes that it started.

Every host runs the same command; ssh, a job scheduler (`train --on-this-node`) or this machine's shell starts it. The
task is one line of JSON on stdin. `run`, which comes with Ray's `token`, follows launcher.py. The other tasks are
answered by one line of JSON: `facts` of this host (for --dry-run), `doctor` (its Request), and `end_run` (for `stop`).
"""

import json
import os
import resource
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, TextIO

import psutil

from ascend_quant.processes.tree import end_all
from ascend_quant.terminal.exits import DONE, FAILED, NOT_FORMED, WRONG_USE
from launch import LaunchError, port_guard
from launch.doctor import hosts
from launch.environment import network
from launch.nodes.checks import find, kernel_kills
from launch.nodes.launcher import Launcher, own_stdout
from launch.nodes.ray_node import Part, variables
from launch.plan import NodePlan
from launch.system import private
from launch.system.processes import OPEN_FILES, end_run, of_run

NODE_SECONDS = 30
LARGEST = 256 << 10  # bytes kept from the end of a log


def main() -> int:
    """Carry out the task; return the exit code."""
    stdout, task = own_stdout(), first_line(sys.stdin)
    if task is None:
        print("node: started by ./run.sh train, which tells it its task on stdin: not for use by hand", file=sys.stderr)
        return WRONG_USE
    if "run" in task:
        return run(task["run"], Launcher(stdout), task.get("token"))
    print(json.dumps(answer(task)), file=stdout, flush=True)
    return DONE


def first_line(stream: TextIO) -> dict[str, Any] | None:
    """Read the task, with a NodePlan for `run` and `facts`; None if there is no valid task."""
    try:
        task = json.loads(stream.readline())
        for kind in {"run", "facts"} & task.keys():
            task[kind] = NodePlan.from_json(json.dumps(task[kind]))
    except (AttributeError, TypeError, ValueError):
        return None
    return task


def answer(task: dict[str, Any]) -> dict[str, Any]:
    """Answer a task other than `run`."""
    if "doctor" in task:
        report = hosts.answer_here(hosts.REQUEST.validate_python(task["doctor"]))
        return hosts.REPORT.dump_python(report, mode="json")
    if "facts" in task:
        checked, problems = find(task["facts"])
        return {"chosen": asdict(checked), "problems": problems}
    parts = [process for process in of_run(task["end_run"]) if is_part(process)]
    end_all(parts, NODE_SECONDS)  # a part ends its own processes in order
    return {"count": len(parts) + end_run(task["end_run"])}


def is_part(process: psutil.Process) -> bool:
    """Return whether a process is `python -m launch node`."""
    try:
        return process.cmdline()[1:4] == ["-m", "launch", "node"]
    except psutil.Error:
        return False


def run(plan: NodePlan, launcher: Launcher, token: str | None) -> int:
    """Check the host, run Ray on it until the job or the run has ended, and end all started processes.

    Args:
        token: Ray's token; None if the hosts are started one by one, and share the head's.

    Returns:
        DONE, FAILED, or NOT_FORMED if the host could not take part.
    """
    deadline = time.monotonic() + plan.join_seconds
    launcher.follow()
    if left := end_run(plan.run):
        launcher.note(f"{left} processes of an earlier attempt of this run were still here: ended")
    checked, problems = find(plan)
    if problems:
        launcher.error("\n".join(problems))
        return NOT_FORMED
    part, killed = Part(plan, checked, launcher, deadline, token), kernel_kills()
    try:
        prepare(part)
        launcher.status(doing="starting Ray")
        from launch.nodes import head, worker  # they import Ray, which reads the environment that is prepared here

        code = head.run(part) if plan.role == "head" else worker.run(part)
    except LaunchError as error:
        launcher.error(str(error))
        code = FAILED if part.formed else NOT_FORMED
    except Exception as error:
        launcher.error(f"{type(error).__name__}: {error}")
        raise
    finally:
        close(part)
    if count := kernel_kills() - killed:
        launcher.note(f"the kernel has killed {count} processes for lack of memory")
    if launcher.why:
        launcher.error(f"its part was ended: {launcher.why}")
        return FAILED
    return code


def prepare(part: Part) -> None:
    """Make the environment of Ray, and this process a client of it."""
    plan = part.plan
    shutil.rmtree(plan.temp_dir, ignore_errors=True)  # from an earlier attempt of this run
    private.make_folder(Path(plan.temp_dir))
    part.environment, notes = variables(plan, part.checked, dict(os.environ))
    notes += open_files()
    part.adopt(part.token or os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32))
    if plan.socket_filter:
        members = [ip for member in plan.members for ip in network.resolve(member)]
        part.environment = port_guard.preloaded(port_guard.build(Path(plan.temp_dir), members), part.environment)
        notes += filter(None, [port_guard.shown()])
    for note in notes:
        part.launcher.note(note)


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


def close(part: Part) -> None:
    """End Ray, keep its logs, remove its folder."""
    plan = part.plan
    part.end_ray()
    logs = Path(plan.logs, private.plain(plan.address), "ray")
    try:
        private.make_folder(Path(plan.logs))
        for name, text in session_logs(Path(plan.temp_dir)):
            (logs / name).parent.mkdir(parents=True, exist_ok=True)
            with private.open_file(logs / name, "w") as file:
                file.write(text)
    except (LaunchError, OSError) as error:
        part.launcher.note(f"Ray's logs could not be kept in {logs}: {error}")
    shutil.rmtree(plan.temp_dir, ignore_errors=True)


def session_logs(temp_dir: Path) -> Iterator[tuple[str, str]]:
    """Yield names (relative to Ray's log folder) and texts: the end of each file that is not empty."""
    folder = temp_dir / "session_latest" / "logs"
    for file in folder.rglob("*"):
        if file.is_file() and (size := file.stat().st_size):
            with file.open("rb") as opened:
                opened.seek(max(0, size - LARGEST))
                yield str(file.relative_to(folder)), opened.read(LARGEST).decode(errors="replace")
