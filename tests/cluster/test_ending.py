"""Ending a run ends what it started on every host, and nothing else: a stray Ray of another user works on."""

import pytest

from cluster.host import PYTHON, Host
from cluster.launches import LONG, Launches
from cluster.leftovers import check_clean
from cluster.running import Running

FORM_SECONDS, END_SECONDS = 330, 45
INTERRUPTED = 130
RAY = PYTHON.replace("python", "ray")
STRAY_PORT = 6400
ASK_STRAY = f"""
import ray
ray.init(address="127.0.0.1:{STRAY_PORT}", logging_level="ERROR")
print("answer", ray.get(ray.remote(lambda: 6 * 7).remote()))
"""


def start_stray_ray(host: Host) -> None:
    """Another user's Ray: default settings but for its port."""
    options = [f"--port={STRAY_PORT}", "--node-ip-address=127.0.0.1", "--include-dashboard=false", "--num-cpus=1"]
    host.run([RAY, "start", "--head", "--disable-usage-stats", *options], RAY_AUTH_MODE="disabled")
    host.residents |= host.processes()
    ask_stray_ray(host)
    check_clean([host])  # the worker that answered ends with its driver, on a busy machine some time after it


def ask_stray_ray(host: Host) -> None:
    assert "answer 42" in host.run([PYTHON, "-c", ASK_STRAY], RAY_AUTH_MODE="disabled")


def working(launches: Launches, host: Host) -> Running:
    run = launches.job(host, "all_reduce")
    run.wait_for("working on node1 node2 node3", FORM_SECONDS)
    return run


def press_ctrl_c(launches: Launches, control: Host, run: Running) -> None:
    run.press_ctrl_c()
    assert run.wait(END_SECONDS) == INTERRUPTED, run.text


def stop(launches: Launches, control: Host, run: Running) -> None:
    assert launches.stop(control).wait(END_SECONDS) == 0
    assert run.wait(END_SECONDS) != 0, run.text


def kill_the_launcher(launches: Launches, control: Host, run: Running) -> None:
    run.end()


@pytest.mark.parametrize(
    "end",
    [stop, *(pytest.param(end, marks=LONG) for end in (press_ctrl_c, kill_the_launcher))],
    ids=lambda end: end.__name__,
)
def test_all_of_ours_ends_and_nothing_of_others(hosts, launches, end):
    if end is press_ctrl_c:
        start_stray_ray(hosts[1])
    run = working(launches, hosts[0])
    end(launches, hosts[0], run)
    check_clean(hosts, END_SECONDS if end is kill_the_launcher else 2)
    for host in hosts:
        assert list(host.path("/tmp").glob("aq-*/*")) == []
        assert list(host.path("/dev/shm").iterdir()) == [] or host is hosts[1]
    if end is press_ctrl_c:
        ask_stray_ray(hosts[1])
