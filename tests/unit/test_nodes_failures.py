"""What the head tells of Ray's records: which of them, in which order, of whom. Values as Ray 2.60 gives them."""

from dataclasses import fields
from types import SimpleNamespace

from launch.cluster.cause import Failure
from launch.nodes.ray_state import SURVIVED_SECONDS, in_order, kernel_kills

END = 1_795_433_111_144  # milliseconds since the epoch
ACTORS = [
    SimpleNamespace(actor_id=f"actor{pid}", node_id=node, pid=pid, name=name, class_name="Worker")
    for node, pid, name in (("n0", 7, "rank0"), ("n1", 8, "rank1"), ("n1", 9, ""))
]
HOSTS = {"n0": 0, "n1": 1}


def task(end: int, actor: str, kind: str = "TASK_EXECUTION_EXCEPTION", **worker: object) -> SimpleNamespace:
    """Without a worker's node and pid, as a task is whose worker has ended before it told them."""
    told = {"error_type": kind, "error_message": "User exception:\n..", "name": "Worker.step"}
    fields = {"node_id": None, "worker_pid": None} | worker
    return SimpleNamespace(actor_id=actor, end_time_ms=end, **fields, **told)


def worker(end: int, node: str, pid: int, kind: str, what: str = "WORKER") -> SimpleNamespace:
    told = {"exit_type": kind, "exit_detail": "..", "worker_type": what}
    return SimpleNamespace(node_id=node, pid=pid, end_time_ms=end, **told)


def driver(kind: str = "INTENDED_USER_EXIT") -> SimpleNamespace:
    return worker(END, "n0", 0, kind, "DRIVER")


def test_failures_come_by_time_with_their_actors_and_hosts():
    tasks = [task(END - 10, "actor7"), task(END - 15, "actor8", "ACTOR_DIED")]
    found = in_order(tasks, [worker(END - 20, "n1", 8, "SYSTEM_ERROR"), driver()], ACTORS, HOSTS)
    assert [(one["what"], one["actor"], one["task"], one["host"]) for one in found] == [
        ("worker", "rank1", "Worker.step", 1),
        ("task", "rank1", "Worker.step", 1),
        ("task", "rank0", "Worker.step", 0),
    ]
    assert [one["pid"] for one in found] == [8, 8, 7]
    assert {field.name for field in fields(Failure)} == found[0].keys()


def test_what_ends_with_the_driver_or_was_survived_has_not_failed_the_run():
    after = [task(END + 5, "actor7", "WORKER_DIED")], [worker(END + 4, "n0", 7, "SYSTEM_ERROR"), driver()]
    assert in_order(*after, ACTORS, HOSTS) == []
    asked_to_end = [worker(END - 5, "n0", 7, "INTENDED_SYSTEM_EXIT"), driver()]
    assert in_order([], asked_to_end, ACTORS, HOSTS) == []
    long_ago = task(END - SURVIVED_SECONDS * 1000 - 100, "actor7")
    assert [one["pid"] for one in in_order([long_ago, task(END - 10, "actor8")], [driver()], ACTORS, HOSTS)] == [8]


def test_a_driver_that_dies_is_a_failure_too():
    assert [one["actor"] for one in in_order([], [driver("SYSTEM_ERROR")], ACTORS, HOSTS)] == ["the driver"]


def test_the_kernels_count_is_the_kernels():
    with open("/proc/vmstat") as file:
        said = dict(line.split() for line in file)
    assert kernel_kills() == int(said.get("oom_kill", 0))


def test_actors_without_a_name_have_their_class_and_plain_tasks_their_own_process():
    plain = task(END - 5, None, node_id="n0", worker_pid=70)
    found = in_order([task(END - 10, "actor9"), plain], [driver()], ACTORS, HOSTS)
    assert [(one["actor"], one["pid"], one["host"]) for one in found] == [("Worker", 9, 1), ("", 70, 0)]
