"""What has failed in this run's Ray, by its state API: tasks that ended with an exception, and workers that died.

Ray keeps both with their times, which tracebacks in logs lack; it is asked on the head, before it is ended.
"""

from pathlib import Path
from typing import Any

from launch.nodes.members import Members

LIMIT = 10_000  # the most that Ray answers
MOST = 200  # of which so many are told
SURVIVED_SECONDS = 600  # what failed longer before the last failure has not ended the run
ANSWER_SECONDS = 10
TASK, WORKER = "task", "worker"
DIED = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY")  # exit types of workers that nobody had asked to end


def failures(dashboard: str, members: Members) -> list[dict[str, Any]]:
    """The failures, first one first; see `launch.cluster.cause.Failure` for the fields.

    Raises:
        RayStateApiException or requests' errors: Ray does not answer.
    """
    from ray.util.state import list_actors, list_nodes, list_tasks, list_workers

    asked = {"address": dashboard, "limit": LIMIT, "timeout": ANSWER_SECONDS, "raise_on_missing_output": False}
    tasks = list_tasks(filters=[("state", "=", "FAILED")], detail=True, **asked)
    workers = list_workers(filters=[("is_alive", "=", "False")], detail=True, **asked)
    if not tasks and not any(worker.exit_type in DIED for worker in workers):
        return []
    actors = {(actor.node_id, actor.pid): actor for actor in list_actors(detail=True, **asked)}
    hosts = {node.node_id: members.number(node.node_ip) for node in list_nodes(**asked)}
    found = [
        failure(TASK, task.error_type, task.error_message, task, task.worker_pid, actors) | {"task": task.name}
        for task in tasks
    ]
    doing = {(task.node_id, task.worker_pid): task.name for task in tasks}
    found += [
        failure(WORKER, worker.exit_type, worker.exit_detail, worker, worker.pid, actors)
        | {"task": doing.get((worker.node_id, worker.pid), "")}
        for worker in workers
        if worker.exit_type in DIED
    ]
    for one in found:
        one["host"] = hosts.get(one.pop("node"))
    return in_the_end(sorted(found, key=lambda one: one["milliseconds"]))


def in_the_end(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without those that the run has survived."""
    last = found[-1]["milliseconds"] if found else 0
    return [one for one in found if last - one["milliseconds"] <= SURVIVED_SECONDS * 1000][:MOST]


def kernel_kills() -> int:
    """How many processes this host's kernel has ended for want of memory since it started; 0 if it does not say."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0


def failure(what: str, kind: str, text: str, state: Any, pid: int | None, actors: dict) -> dict[str, Any]:
    """One failure, as Ray's state API has it."""
    actor = actors.get((state.node_id, pid))
    return {
        "what": what,
        "kind": kind or "",
        "text": text or "",
        "actor": (actor.name or actor.class_name) if actor else "",
        "pid": pid,
        "milliseconds": state.end_time_ms or 0,
        "node": state.node_id,
    }
