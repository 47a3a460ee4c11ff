"""Whole runs with a real Ray on this machine, driven from outside as a user does: their ends, and that nothing is left.

The job is a small script in place of verl. A run takes about 20 s on two cores, so each shows several things.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from cluster_cases import PROJECT, free_ports, new_run

from ascend_quant.processes.tree import signal_each
from launch.nodes.part import is_part
from launch.system.private import run_folder
from launch.system.processes import of_run

pytest.importorskip("ray")

DRIVER = """
import os, sys
sys.path[:0] = [{tests!r}, {project!r}]
from cluster_cases import node_plan, plan_of
from launch.cluster.run import run
from launch.plan import Job
job = Job(['-c', {job!r}], {{'data/words.txt': 'two words'}}, {{'COLOUR': 'blue'}})
node = node_plan({run!r}, ports={ports!r}, job=job, out=os.path.abspath('runs/' + {run!r}))
sys.exit(run(plan_of(node), {restarts}))
"""
LOOK = """
import os, pathlib, ray
ray.init()
@ray.remote(num_gpus=1)
class Actor:
    def look(self):
        mine = dict(line.split('=', 1) for line in open(f'/proc/{os.getpid()}/environ').read().split(chr(0)) if line)
        names = ('ASCEND_QUANT_RUN', 'GLOO_SOCKET_IFNAME')
        return [mine.get(name) for name in names], os.environ['COLOUR'], pathlib.Path('data/words.txt').read_text()
    def place(self):
        return ray.util.get_node_ip_address()
print('SEEN', ray.get(Actor.remote().look.remote()))
print('PLACE', ray.get(Actor.remote().place.remote()))
print('Total training steps: 2')
print('step:1 - loss:0.5')
"""
SLEEP = "import time; print('job is there', flush=True); time.sleep(600)"
FAIL = """
import atexit, os, pathlib, signal, sys, ray
attempts = pathlib.Path('ATTEMPTS')
attempt = int(attempts.read_text()) if attempts.exists() else 0
attempts.write_text(str(attempt + 1))
@ray.remote(num_cpus=0)
class Rank:
    def pid(self):
        return os.getpid()
    def no_package(self):
        import no_such_package
    def no_memory(self):
        import torch
        torch.empty(1 << 50)
    def killed(self):
        os.kill(os.getpid(), signal.SIGKILL)
def warn():
    for number in range(200):
        print('UserWarning: number', number, file=sys.stderr)
ray.init()
atexit.register(warn)  # after the traceback
rank = Rank.options(name='rank7').remote()
print('attempt with', ray.get(rank.pid.remote()), flush=True)
ray.get(getattr(rank, ('no_package', 'no_memory', 'killed')[attempt]).remote())
"""


class Run:
    """A run in a process of its own."""

    def __init__(self, folder: Path, first_port: int, job: str, restarts: int = 0) -> None:
        self.id, self.folder = new_run(), folder
        ports = free_ports(first_port)
        tests = str(Path(__file__).parent)
        code = DRIVER.format(tests=tests, project=str(PROJECT), run=self.id, ports=ports, job=job, restarts=restarts)
        another = {"RAY_ADDRESS": "203.0.113.7:6379", "RAY_TMPDIR": str(folder / "elsewhere")}  # the user's other Ray
        self.output = folder / "output"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            cwd=folder,
            env=os.environ | another,
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    @property
    def text(self) -> str:
        return self.output.read_text()

    @property
    def record(self) -> dict:
        return json.loads((self.folder / "runs" / self.id / "run.json").read_text())

    def wait_for(self, text: str, seconds: float = 120) -> None:
        """Until the output has it."""
        deadline = time.monotonic() + seconds
        while text not in self.text:
            assert self.process.poll() is None and time.monotonic() < deadline, self.text
            time.sleep(0.2)


def told_in(text: str) -> dict[str, str]:
    """The cause of a failed attempt, from its last lines."""
    return dict(line.split(": ", 1) for line in text.strip().splitlines()[-3:])


@pytest.fixture
def begin(tmp_path):
    """begin(first_port, job, restarts): a run; whatever happens, nothing of it stays."""
    runs = []

    def make(first_port: int, job: str, restarts: int = 0) -> Run:
        runs.append(Run(tmp_path, first_port, job, restarts))
        return runs[-1]

    yield make
    for run in runs:
        run.process.kill()
        run.process.wait()
        signal_each(of_run(run.id), psutil.Process.kill)
        shutil.rmtree(run_folder(run.id), ignore_errors=True)


def test_a_job_runs_in_a_wired_marked_ray_and_nothing_is_left(begin):
    run = begin(22000, LOOK)
    assert run.process.wait(150) == 0, run.text
    assert f"SEEN (['{run.id}', 'lo'], 'blue', 'two words')" in run.text
    assert "PLACE 127.0.0.1" in run.text  # where verl's data plane binds
    assert "joined 1/1" in run.text and "step 1 of 2" in run.text
    assert of_run(run.id) == [] and not run_folder(run.id).exists()
    logs = run.folder / "runs" / run.id / "logs"
    assert "step:1 - loss:0.5" in (logs / "driver.log").read_text()
    assert (logs / "127.0.0.1" / "ray" / "gcs_server.out").stat().st_size
    assert "Ray runtime started" in (logs / "127.0.0.1.log").read_text()
    assert run.record["state"] == "done"
    assert not (run.folder / "elsewhere").exists()


def test_a_failing_job_is_restarted_so_often_and_each_cause_is_told_last(begin, tmp_path):
    run = begin(22200, FAIL.replace("ATTEMPTS", str(tmp_path / "attempts")), restarts=2)
    assert run.process.wait(250) == 1, run.text
    attempts = re.split(r"^restart \d of 2$", run.text, flags=re.MULTILINE)
    pids = re.findall(r"^attempt with (\d+)$", run.text, re.MULTILINE)
    assert len(attempts) == len(pids) == 3
    ways = {
        "no_package": r"ModuleNotFoundError: .*no_such_package",
        "no_memory": "Allocator",
        "killed": "ActorDiedError: ",
    }
    for text, pid, (way, error) in zip(attempts, pids, ways.items(), strict=True):
        assert "UserWarning: number 199" in text
        told = told_in(text)
        assert list(told) == ["cause", "where", "log"], text[-3000:]
        assert re.search(error, told["cause"]), told
        assert told["where"].endswith(f", 127.0.0.1, pid {pid}"), way
    file, _, line = told_in(attempts[1])["log"].rpartition(":")
    assert "Allocator" in (run.folder / file).read_text().splitlines()[int(line) - 1]
    assert run.record["state"] == "failed" and run.record["restarts"] == 2
    assert run.record["cause"]["error"] == told["cause"]
    assert of_run(run.id) == []


def test_stop_ends_what_a_killed_node_process_has_left(begin):
    run = begin(22800, SLEEP)
    run.wait_for("job is there")
    parts = [process for process in of_run(run.id) if is_part(process)]
    run.process.kill()  # both at once, as when a machine runs out of memory
    signal_each(parts, psutil.Process.kill)
    assert len(of_run(run.id)) > 5
    stop = [sys.executable, "-c", "import sys; from launch.cluster.run import stop; sys.exit(stop(None))"]
    variables = os.environ | {"PYTHONPATH": str(PROJECT)}
    done = subprocess.run(stop, cwd=run.folder, env=variables, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert re.search(r"127\.0\.0\.1: \d+ ended", done.stdout)
    assert of_run(run.id) == [] and run.record["state"] == "stopped"
