"""What Ray's state API says of a run: who has joined, whose Ray has died, and what has failed, with the times.

Failures are tasks that ended with an exception, and workers that died. Tracebacks in logs lack the times, so Ray is
asked on the head, before it is ended.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from launch import network
from launch.errors import LaunchError
from launch.plan import NodePlan

ANSWER_SECONDS = 10
LIMIT = 10_000  # the most that Ray answers
MOST = 200  # of which so many are told
SURVIVED_SECONDS = 600  # what failed longer before the last failure has not ended the run
TASK, WORKER, DRIVER = "task", "worker", "DRIVER"
DIED = ("SYSTEM_ERROR", "NODE_OUT_OF_MEMORY")  # exit types of workers that nobody had asked to end


@dataclass
class Members:
    """The members of a run; hosts are their numbers in the plan."""

    addresses: list[list[str]]
    joined: set[int] = field(default_factory=set)
    lost: dict[int, str] = field(default_factory=dict)

    def look(self, nodes: list[Any]) -> bool:
        """Take in what Ray says; true if anything is new. A member that died stays lost."""
        before = set(self.joined), dict(self.lost)
        for node in nodes:
            host = self.number(node.node_ip)
            if host is None:
                continue
            if node.state == "ALIVE" and host not in self.lost:
                self.joined.add(host)
            elif node.state == "DEAD" and host in self.joined:
                self.joined.discard(host)
                self.lost[host] = node.state_message or "Ray gives no reason"
        return (self.joined, self.lost) != before

    def number(self, address: str) -> int | None:
        """The host that has an address. A run on one host has no others: Ray replaces a loopback address."""
        if len(self.addresses) == 1:
            return 0
        return next((host for host, known in enumerate(self.addresses) if address in known), None)


def of_plan(plan: NodePlan) -> Members:
    """The members that a plan wants; a name that leads nowhere is an error that says which host it is."""
    addresses = []
    for member in plan.members:
        try:
            addresses.append(network.resolve(member))
        except LaunchError as error:
            raise LaunchError(f"the head looks for {member}: {error}") from None
    return Members(addresses)


def nodes(dashboard: str) -> list[Any]:
    """Ray's nodes, alive and dead. Raises RayStateApiException or requests' errors when it does not answer."""
    from ray.util.state import list_nodes

    return list_nodes(address=dashboard, timeout=ANSWER_SECONDS, raise_on_missing_output=False)


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
