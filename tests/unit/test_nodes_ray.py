"""Starting Ray: commands that its own parser accepts, every port chosen and none twice; and a start that Ray gives up
after its own 30 s, on a busy host, is tried again until the hosts must have joined.
"""

import inspect
import json
import os
import sys
import threading
import time
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from cluster_cases import new_run, node_plan

from launch import LaunchError
from launch.environment import network
from launch.environment.network import Wire
from launch.nodes.checks import Checked
from launch.nodes.launcher import Launcher
from launch.nodes.ray_node import GAVE_UP, OTHER_CLUSTERS, Part, joined, start_command
from launch.system.private import run_folder
from launch.system.processes import MARK, of_run

WIRE = Wire("eth0", "192.0.2.11", "ipv4")


def parsed(command: list[str]) -> dict:
    """What Ray's command line makes of it; an option that it does not know is an error."""
    start = pytest.importorskip("ray.scripts.scripts").start
    assert command[:2] == ["ray", "start"]
    return start.make_context("start", list(command[2:])).params


@pytest.mark.parametrize("role", ["head", "worker"])
def test_every_port_of_a_host_is_chosen_and_checked(role):
    plan = node_plan(role=role, head="192.0.2.10", address="192.0.2.11", members=["192.0.2.10", "192.0.2.11"])
    options = parsed(start_command(plan, WIRE, 1))
    daemons = [name.replace("-", "_") for name in network.DAEMONS]
    if role == "worker":
        daemons.remove("ray_client_server_port")
        assert options["address"] == "192.0.2.10:21000"
    chosen = [options[name] for name in daemons]
    if role == "head":
        chosen += [int(options["port"]), int(options["dashboard_port"])]
    assert all(chosen)
    assert sorted(chosen) == sorted(network.needed_ports(role, plan.ports))
    chosen += [int(port) for port in network.metrics_ports(plan.ports).values()]
    assert len(set(chosen)) == len(chosen)
    workers = range(int(options["min_worker_port"]), int(options["max_worker_port"]) + 1)
    assert len(workers) > 50 and not set(chosen) & set(workers)


def test_head_and_worker_differ_where_they_must():
    plan = node_plan()
    head = parsed(start_command(plan, WIRE, 1))
    worker = parsed(start_command(replace(plan, role="worker"), WIRE, 1))
    assert (head["head"], worker["head"]) == (True, False)
    assert head["dashboard_host"] == "192.0.2.11"
    for options in (head, worker):
        assert options["block"] and options["temp_dir"] == str(run_folder(plan.run))
        assert options["node_ip_address"] == "192.0.2.11"


def test_ray_counts_the_devices_by_the_names_that_verl_asks_for():
    npu = parsed(start_command(node_plan(stack="ascend-cann9.1"), WIRE, 8))
    gpu = parsed(start_command(node_plan(stack="cuda13"), WIRE, 4))
    cpu = parsed(start_command(node_plan(), WIRE, 2))
    assert json.loads(npu["resources"]) == {"NPU": 8} and npu["num_gpus"] is None
    assert gpu["num_gpus"] == 4 and gpu["num_cpus"] is None
    assert cpu["num_gpus"] == 2 and cpu["num_cpus"] >= 16


def test_an_ipv6_head_is_written_in_brackets():
    plan = node_plan(role="worker", head="2001:db8::1")
    assert parsed(start_command(plan, Wire("eth0", "2001:db8::2", "ipv6"), 1))["address"] == "[2001:db8::1]:21000"
    assert joined("node1", 1) == "node1:1"


# In place of Ray's command, which gives up only where it had to wait: a daemon outlives each start that fails.
RAY = """
import pathlib, subprocess, sys, time
starts = pathlib.Path(__file__).with_name('starts')
count = len(starts.read_text()) + 1
subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
starts.write_text('x' * count)
if count <= {failures}:
    raise {error}
time.sleep(600)
"""
TIMED_OUT = "Exception('The current node timed out during startup. The GCS may be overloaded.')"
OTHER = "RuntimeError('Version mismatch: 2.60.0 and 2.59.0')"


class Started:
    """A part whose Ray fails so many times, and what it has told."""

    def __init__(self, folder: Path, failures: int, error: str, seconds: float) -> None:
        package = folder / "ray" / "scripts"
        package.mkdir(parents=True)
        for level in (package.parent, package):
            (level / "__init__.py").touch()  # or the real Ray would come first
        (package / "scripts.py").write_text(RAY.format(failures=failures, error=error))
        self.starts = package / "starts"
        self.starts.touch()
        self.notes: list[str] = []
        run = new_run()
        environment = os.environ | {"PYTHONPATH": str(folder), MARK: run}
        launcher = Launcher(sys.stdout)
        launcher.note = self.notes.append
        deadline = time.monotonic() + seconds
        self.part = Part(node_plan(run), Checked(), launcher, deadline, environment=environment)
        self.part.start_ray(["ray", "start"])

    def count(self) -> int:
        return len(self.starts.read_text())

    def check_until(self, count: int) -> None:
        """Check as the host's part does, until Ray was started so many times."""
        deadline = time.monotonic() + 60
        while self.count() < count and time.monotonic() < deadline:
            self.part.check_ray()
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path):
    made: list[Started] = []

    def of(failures: int, error: str = TIMED_OUT, seconds: float = 60) -> Started:
        made.append(Started(tmp_path, failures, error, seconds))
        return made[-1]

    yield of
    for started in made:
        started.part.end_ray()


def test_it_starts_again_with_nothing_left_of_the_start_before(start):
    started = start(failures=2)
    started.check_until(3)
    started.part.check_ray()
    assert (started.count(), len(started.notes)) == (3, 2)
    assert len(of_run(started.part.plan.run)) == 2, "more than the third start and its daemon"


@pytest.mark.parametrize(("error", "seconds"), [(OTHER, 60), (TIMED_OUT, 0)], ids=["another reason", "too late"])
def test_it_fails_with_what_ray_said(start, error, seconds):
    started = start(failures=9, error=error, seconds=seconds)
    with pytest.raises(LaunchError, match="timed out during startup" if error == TIMED_OUT else "2.60.0 and 2.59.0"):
        started.check_until(2)
    assert (started.count(), started.notes) == (1, [])


def test_these_are_still_the_words_of_ray():
    private = pytest.importorskip("ray._private")
    for module, words in zip((private.node, private.utils), GAVE_UP, strict=True):
        assert words in inspect.getsource(module)


def test_a_part_asks_the_dashboard_without_the_proxy_of_its_shell(monkeypatch):
    """A cluster's shells often have one, which does not know the hosts of a run."""
    for name in ("no_proxy", "NO_PROXY", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", *OTHER_CLUSTERS):
        monkeypatch.setenv(name, "")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with ThreadingHTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as dashboard:
        threading.Thread(target=dashboard.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{dashboard.server_port}"
        with pytest.raises(requests.exceptions.ProxyError):
            requests.head(address, timeout=5)
        Part(node_plan(), Checked(), Launcher(sys.stderr), 0).adopt("token")
        assert requests.head(address, timeout=5).ok
        dashboard.shutdown()


def test_a_daemon_that_has_ended_is_named_before_the_lines_of_its_log(start):
    log = "\n".join(f"Event stats {number}" for number in range(20))
    said = f"ERR scripts.py:87 -- \x1b[1mgcs_server\x1b[22m [exit code=-9]\n{log}"
    with pytest.raises(LaunchError, match=r"gcs_server .*=-9"):
        start(failures=9, error=f"SystemExit({said!r})").check_until(2)
