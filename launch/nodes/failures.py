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
    names = {(actor.node_id, actor.pid): actor.name or actor.class_name for actor in list_actors(**asked)}
    hosts = {node.node_id: members.number(node.node_ip) for node in list_nodes(**asked)}
    return in_order(tasks, workers, names, hosts)


def in_order(
    tasks: list[Any], workers: list[Any], names: dict[tuple[str, int], str], hosts: dict[str, int | None]
) -> list[dict[str, Any]]:
    """Failed tasks and dead workers as Ray's state API has them, by time.

    Args:
        names: of actors, by node and pid.
        hosts: numbers of the hosts, by node.
    """
    drivers = [one for one in workers if one.worker_type == DRIVER]
    doing = {(task.node_id, task.worker_pid): task.name for task in tasks}
    found = [(TASK, task.error_type, task.error_message, task, task.worker_pid) for task in tasks]
    found += [(WORKER, one.exit_type, one.exit_detail, one, one.pid) for one in workers if one.exit_type in DIED]
    told = [
        {
            "what": what,
            "kind": kind or "",
            "text": text or "",
            "actor": names.get((state.node_id, pid), "the driver" if state in drivers else ""),
            "task": doing.get((state.node_id, pid), "") if what == WORKER else state.name,
            "pid": pid,
            "host": hosts.get(state.node_id),
            "milliseconds": state.end_time_ms or 0,
        }
        for what, kind, text, state, pid in found
    ]
    end = max((driver.end_time_ms or 0 for driver in drivers), default=0)
    return in_the_end(sorted(told, key=lambda one: one["milliseconds"]), end)


def in_the_end(found: list[dict[str, Any]], end: int) -> list[dict[str, Any]]:
    """Without those that the run has survived, and those that came of the driver's end, if Ray knows when that was."""
    before = [one for one in found if not end or one["milliseconds"] <= end]
    last = before[-1]["milliseconds"] if before else 0
    return [one for one in before if last - one["milliseconds"] <= SURVIVED_SECONDS * 1000][:MOST]


def kernel_kills() -> int:
    """How many processes this host's kernel has ended for want of memory since it started; 0 if it does not say."""
    words = Path("/proc/vmstat").read_text().split()
    return int(words[words.index("oom_kill") + 1]) if "oom_kill" in words else 0
