"""Which of many failures on many hosts ended an attempt: by Ray's times, by what a worker left, by who still lives."""

from pathlib import Path

import pytest

from launch.cluster.cause import RAISED, Evidence, Failure
from launch.cluster.hosts import HostState

GLOO = "RuntimeError: [gloo/transport/tcp/pair.cc:537] Read error [127.0.0.1]:16785: Connection reset by peer."
ENDED = "Worker unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) .."
NUMBERS = {"a": 0, "b": 1}


def task(at: int, error: str, pid: int, host: int = 0, **changes: object) -> Failure:
    """A failed task as Ray 2.60 tells it: the traceback without its beginning."""
    text = f'User exception:\nf(*args)\n  File "/x.py", line 3, in f\n    g()\n{error}'
    fields = {"kind": RAISED, "text": text, "actor": f"rank{pid}", "task": "Worker.step"} | changes
    return Failure("task", pid=pid, host=host, milliseconds=at, **fields)


def death(at: int, pid: int, host: int = 0, kind: str = "SYSTEM_ERROR", text: str = ENDED) -> Failure:
    return Failure("worker", kind, text, f"rank{pid}", "Worker.step", pid, host, at)


@pytest.fixture
def evidence(tmp_path: Path):
    """evidence(failures, driver, files by host and name): of a run on hosts a and b."""

    def make(
        failures: list[Failure], driver: str = "", files: dict[str, str] | None = None, before: int = 0
    ) -> Evidence:
        (tmp_path / "driver.log").write_text(driver)
        known = []
        for name, text in (files or {}).items():
            file = tmp_path / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
            known.append((NUMBERS[name[0]], file))
        hosts = [HostState(address) for address in NUMBERS]
        return Evidence(hosts, tmp_path, before, sorted(failures, key=lambda one: one.milliseconds), known)

    return make


def test_the_first_exception_counts_not_the_one_that_the_driver_tells(evidence):
    told = "Traceback (most recent call last):\nValueError: at last\n"
    failures = [task(30, "ValueError: at last", 1), task(10, "KeyError: 'first'", 2, host=1), task(20, GLOO, 3)]
    cause = evidence(failures, told).cause()
    assert (cause.error, cause.where) == ("KeyError: 'first'", "rank2 (step), b, pid 2")


def test_a_consequence_that_came_earlier_does_not_hide_a_killed_worker(evidence):
    died = task(5, "The actor is dead because its worker process has died.", 7, kind="ACTOR_DIED")
    files = {"a/worker-00-01-7.err": ":job_id:01\n", "b/worker-11-01-7.err": ":job_id:01\n:actor_name:Worker\n"}
    cause = evidence([task(1, GLOO, 3), died, death(9, 7, host=1)], files=files).cause()
    assert "SIGKILL" in cause.error and cause.where == "rank7 (step), b, pid 7"
    assert cause.log.endswith("b/worker-11-01-7.err") and "--restart" in cause.fix


def test_who_killed_a_worker_is_told_where_it_is_known(evidence):
    seen = evidence([death(9, 7, host=1)])
    seen.hosts[1].kernel_kills = 1
    assert "kernel" in seen.cause().error
    monitor = death(9, 7, kind="NODE_OUT_OF_MEMORY", text="Task was killed due to the node running low on memory.")
    assert evidence([monitor]).cause().fix.startswith("host memory")
    bus = {"a/worker-00-01-7.err": "*** SIGBUS received at time=1795432969 on cpu 0 ***\n*** SIGTERM received at ..\n"}
    cause = evidence([death(9, 7)], files=bus).cause()
    assert "SIGBUS" in cause.error and "--shm-size" in cause.fix


def test_a_worker_that_exits_by_itself_has_last_words(evidence):
    """As a real run of verl ended whose engine_kwargs had a name that vLLM lacks."""
    files = {
        "a/worker-00-01-7.err": ":job_id:02\n[transformers] a warning\nusage: default_worker.py [-h] {serve} ...\n"
        "default_worker.py: error: unrecognized arguments: --nosuch 1\n",
        "a/worker-00-01-7.out": ":actor_name:RefitHttpServer\n",
    }
    left = death(9, 7, text="Worker exits unexpectedly. Worker exits with an exit code 2.")
    cause = evidence([left], files=files).cause()
    assert "code 2" in cause.error and "--nosuch" in cause.error
    assert cause.log.endswith("-7.err:4") and "engine_kwargs" in cause.fix


def test_behind_a_dead_engine_stands_the_error_of_its_own_process(evidence):
    engine = ["Traceback (most recent call last):", '  File "/x.py", line 1, in f', "ValueError: too little memory"]
    written = "".join(f"(EngineCore pid=99) ERROR 11-23 10:00:00 [core.py:1] {line}\n" for line in engine)
    other = "Traceback (most recent call last):\nKeyError: 'handled by another process'\n".splitlines()
    driver = "".join(f"(Reward pid=4) {line}\n" for line in other)
    dead = task(5, "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.", 7, host=1)
    for log, files in (("driver", {}), ("own", {"b/worker-11-01-7.err": written})):
        lines = "".join(f"(Server pid=7, ip=b) {line}\n" for line in written.splitlines()) if log == "driver" else ""
        cause = evidence([dead], driver + lines, files).cause()
        assert (cause.error, cause.where) == ("ValueError: too little memory", "EngineCore, b, pid 99"), log


def test_a_dead_host_is_the_cause_of_its_workers_deaths(evidence):
    seen = evidence([task(1, GLOO, 3), death(2, 7, host=1)])
    seen.hosts[1].problem = "silent for 16 s"
    cause = seen.cause()
    assert cause.error == "b: silent for 16 s" and cause.log.endswith("/b.log")
    assert evidence([death(2, 7, host=1)]).cause().where.startswith("rank7")


def test_an_earlier_attempt_is_no_cause_of_this_one(evidence):
    lines = "Traceback (most recent call last):\nKeyError: '{}'\n"
    cause = evidence([], lines.format("old") + lines.format("new"), before=2).cause()
    assert cause.error == "KeyError: 'new'" and cause.log.endswith("driver.log:4")
    assert cause.where == "the driver, a"
    assert evidence([], lines.format("old"), before=2).cause() is None


def test_the_last_resort_are_rays_own_words(evidence):
    seen = evidence([])
    seen.said = "the job's working directory\nunpacked: no\n"
    assert seen.cause().error == "unpacked: no"
    stuck = task(1, "", 3, kind="TASK_UNSCHEDULABLE_ERROR", text="no node has a GPU")
    assert evidence([stuck]).cause().error == "TASK_UNSCHEDULABLE_ERROR: no node has a GPU"
