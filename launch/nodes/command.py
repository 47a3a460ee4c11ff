"""`python -m launch node`: one task in JSON on the first line of stdin, events on stdout; see events.py."""

import json
import os
import sys
from typing import TextIO

import psutil

from launch.errors import LaunchError
from launch.nodes.events import Emit, emitter
from launch.nodes.orders import Orders
from launch.plan.fields import NodePlan
from launch.processes import end_all, end_run, of_run

WRONG_USE = 2
NODE_SECONDS = 30


def main() -> int:
    """Do the task; returns the exit code."""
    orders = Orders()
    emit = emitter(own_stdout(), lost=lambda: orders.end("the control host has gone"))
    task = first_line(sys.stdin)
    if task is None:
        print("node: started by ./run.sh train, which tells it its task on stdin: not for use by hand", file=sys.stderr)
        return WRONG_USE
    if "run" in task:
        from launch.nodes.run import run_node

        plan = NodePlan.from_json(json.dumps(task["run"]))
        orders.follow(sys.stdin, emit)
        return run_node(plan, task["token"], emit, orders, task["meeting"])
    if "facts" in task:
        return tell_facts(NodePlan.from_json(json.dumps(task["facts"])), emit)
    return end(task["end_run"], emit)


def own_stdout() -> TextIO:
    """The channel to the control host; what libraries print goes to stderr from here on."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


def first_line(stream: TextIO) -> dict | None:
    """The task, or None when there is none."""
    try:
        task = json.loads(stream.readline())
    except ValueError:
        return None
    return task if isinstance(task, dict) and {"run", "facts", "end_run"} & task.keys() else None


def tell_facts(plan: NodePlan, emit: Emit) -> int:
    """For --dry-run: what the host is, as `chosen` the wire and the devices of the run, as `problems` what stops it."""
    from dataclasses import asdict

    from launch.nodes.checks import find
    from launch.nodes.facts import gather

    try:
        facts = gather(plan.stack, plan.temp_dir)
    except LaunchError as error:
        emit("failed", why=str(error))
        return 1
    found = asdict(find(plan, facts))
    problems = found.pop("problems")
    emit("checked", facts=facts | {"chosen": found, "problems": problems})
    return 0


def end(run: str, emit: Emit) -> int:
    """For `stop`: end what a run has started on this host, by the run's id, and nothing else."""
    nodes = [process for process in of_run(run) if is_node(process)]
    end_all(nodes, NODE_SECONDS)  # a node process ends its own in order
    emit("ended", code=0, count=len(nodes) + end_run(run))
    return 0


def is_node(process: psutil.Process) -> bool:
    """Whether this is a `python -m launch node`."""
    try:
        return process.cmdline()[1:4] == ["-m", "launch", "node"]
    except psutil.Error:
        return False
