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
TASK, WORKER, DRIVER = "task", "worker", "DRIVER"
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
    hosts = {node.node_id: members.number(node.node_ip) for node in list_nodes(**asked)}
    return in_order(tasks, workers, list_actors(**asked), hosts)


def in_order(
    tasks: list[Any], workers: list[Any], actors: list[Any], hosts: dict[str, int | None]
) -> list[dict[str, Any]]:
    """Failed tasks and dead workers as Ray's state API has them, by time; `hosts` has their numbers by node.

    A task's own pid and node are missing where its worker had no time to tell them; its actor's are there.
    """
    drivers = [one for one in workers if one.worker_type == DRIVER]
    by_id = {actor.actor_id: actor for actor in actors}
    names = {(actor.node_id, actor.pid): actor.name or actor.class_name for actor in actors}
    found, doing = [], {}
    for task in tasks:
        actor = by_id.get(task.actor_id)
        process = (actor.node_id, actor.pid) if actor else (task.node_id, task.worker_pid)
        doing[process] = task.name
        found.append((TASK, task.error_type, task.error_message, process, task))
    found += [(WORKER, one.exit_type, one.exit_detail, (one.node_id, one.pid), one) for one in workers if died(one)]
    told = [
        {
            "what": what,
            "kind": kind or "",
            "text": text or "",
            "actor": "the driver" if state in drivers else names.get(process, ""),
            "task": state.name if what == TASK else doing.get(process, ""),
            "pid": process[1],
            "host": hosts.get(process[0]),
            "milliseconds": state.end_time_ms or 0,
        }
        for what, kind, text, process, state in found
    ]
    end = max((driver.end_time_ms or 0 for driver in drivers), default=0)
    return in_the_end(sorted(told, key=lambda one: one["milliseconds"]), end)


def died(worker: Any) -> bool:
    """Whether nobody had asked a worker to end."""
    return worker.exit_type in DIED


def in_the_end(found: list[dict[str, Any]], end: int) -> list[dict[str, Any]]:
    """Without those that the run has survived, and those that came of the driver's end, if Ray knows when that was."""
    before = [one for one in found if not end or one["milliseconds"] <= end]
    last = before[-1]["milliseconds"] if before else 0
    return [one for one in before if last - one["milliseconds"] <= SURVIVED_SECONDS * 1000][:MOST]


def kernel_kills() -> int:
    """How many processes this host's kernel has ended for want of memory since it started; 0 if it does not say."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
