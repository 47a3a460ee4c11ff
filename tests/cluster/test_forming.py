"""Both ways to start end in the same Ray cluster, and its processes have the right NIC and address on every host.

What a process has is read from the kernel (/proc/PID/environ of Ray's workers), not asked of Ray or of the launcher.
"""

import psutil
import pytest

from cluster.host import Host
from cluster.launches import Launches

FORM_SECONDS = 150
SUM_OF_RANKS = 1.0 + 10.0 + 100.0
GIVEN_BY_NIC = ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


def workers_of(host: Host) -> list[dict[str, str]]:
    """The environments of Ray's actors and tasks on a host."""
    found = []
    for process in host.processes():
        try:
            if process.cmdline()[0].startswith("ray::Worker"):
                found.append(process.environ())
        except (psutil.NoSuchProcess, IndexError):
            continue
    return found


def check_wiring(hosts: list[Host]) -> None:
    for host in hosts:
        environments = workers_of(host)
        assert environments, f"no Ray worker on {host.name}"
        for environment in environments:
            assert {name: environment.get(name) for name in GIVEN_BY_NIC} == dict.fromkeys(GIVEN_BY_NIC, host.nic)
            assert environment["VLLM_HOST_IP"] == host.address
            assert environment["ASCEND_QUANT_RUN"]


def start(launches: Launches, hosts: list[Host], way: str, job: str) -> list:
    """The launches of one run: one of the control host, or one on every host, the head last."""
    if way == "over ssh":
        return [launches.job(hosts[0], job)]
    return [launches.job(host, job, "--on-this-node") for host in reversed(hosts)][::-1]


@pytest.mark.parametrize("way", ["over ssh", "on every node"])
def test_the_right_nic_and_address_in_every_hosts_environment(hosts, launches, way):
    runs = start(launches, hosts, way, "work_until_told")
    runs[0].wait_for("working on node1 node2 node3", FORM_SECONDS)
    check_wiring(hosts)
    (launches.out / "GO").touch()
    assert [run.wait(60) for run in runs] == [0] * len(runs), "\n".join(run.text for run in runs)


@pytest.mark.parametrize("way", ["over ssh", "on every node"])
def test_an_all_reduce_across_hosts(hosts, launches, way):
    runs = start(launches, hosts, way, "all_reduce")
    assert [run.wait(FORM_SECONDS) for run in runs] == [0] * len(runs), "\n".join(run.text for run in runs)
    assert f"hosts 3, sums {[(SUM_OF_RANKS, SUM_OF_RANKS)] * 3}" in runs[0].text
