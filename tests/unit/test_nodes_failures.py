"""What the head tells of Ray's records: which of them, in which order, of whom. Values as Ray 2.60 gives them."""

from dataclasses import fields
from types import SimpleNamespace

from launch.cluster.cause import Failure
from launch.nodes.failures import SURVIVED_SECONDS, in_order, kernel_kills

END = 1_795_433_111_144  # milliseconds since the epoch
NAMES, HOSTS = {("n0", 7): "rank0", ("n1", 8): "rank1"}, {"n0": 0, "n1": 1}


def task(end: int, node: str, pid: int, kind: str = "TASK_EXECUTION_EXCEPTION") -> SimpleNamespace:
    told = {"error_type": kind, "error_message": "User exception:\n..", "name": "Worker.step"}
    return SimpleNamespace(node_id=node, worker_pid=pid, end_time_ms=end, **told)


def worker(end: int, node: str, pid: int, kind: str, what: str = "WORKER") -> SimpleNamespace:
    told = {"exit_type": kind, "exit_detail": "..", "worker_type": what}
    return SimpleNamespace(node_id=node, pid=pid, end_time_ms=end, **told)


def driver(kind: str = "INTENDED_USER_EXIT") -> SimpleNamespace:
    return worker(END, "n0", 0, kind, "DRIVER")


def test_failures_come_by_time_with_their_actors_and_hosts():
    tasks = [task(END - 10, "n0", 7), task(END - 15, "n1", 8, "ACTOR_DIED")]
    found = in_order(tasks, [worker(END - 20, "n1", 8, "SYSTEM_ERROR"), driver()], NAMES, HOSTS)
    assert [(one["what"], one["actor"], one["task"], one["host"]) for one in found] == [
        ("worker", "rank1", "Worker.step", 1),
        ("task", "rank1", "Worker.step", 1),
        ("task", "rank0", "Worker.step", 0),
    ]
    assert {field.name for field in fields(Failure)} == found[0].keys()


def test_what_ends_with_the_driver_or_was_survived_has_not_failed_the_run():
    after = [task(END + 5, "n0", 7, "WORKER_DIED")], [worker(END + 4, "n0", 7, "SYSTEM_ERROR"), driver()]
    assert in_order(*after, NAMES, HOSTS) == []
    asked_to_end = [worker(END - 5, "n0", 7, "INTENDED_SYSTEM_EXIT"), driver()]
    assert in_order([], asked_to_end, NAMES, HOSTS) == []
    long_ago = task(END - SURVIVED_SECONDS * 1000 - 100, "n0", 7)
    assert [one["pid"] for one in in_order([long_ago, task(END - 10, "n1", 8)], [driver()], NAMES, HOSTS)] == [8]


def test_a_driver_that_dies_is_a_failure_too():
    assert [one["actor"] for one in in_order([], [driver("SYSTEM_ERROR")], NAMES, HOSTS)] == ["the driver"]


def test_the_kernels_count_is_the_kernels():
    with open("/proc/vmstat") as file:
        said = dict(line.split() for line in file)
    assert kernel_kills() == int(said.get("oom_kill", 0))
