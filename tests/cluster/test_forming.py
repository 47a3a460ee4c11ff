"""Both ways to start end in the same Ray cluster; on every host its processes have the right NIC and address.

What a process has is read from the kernel (/proc/PID/environ of Ray's workers), not asked of Ray or of the launcher.
That it is right is shown by an all-reduce of all hosts, which no other wiring lets pass.
"""

import re
from collections.abc import Callable
from contextlib import suppress

import psutil
import pytest

from cluster.host import Host, Nic
from cluster.launches import LONG, Launches
from cluster.running import Running

FORM_SECONDS, REDUCE_SECONDS, END_SECONDS = 330, 90, 60
SUM_OF_RANKS = 1.0 + 10.0 + 100.0
REDUCED_BYTES, CHATTER_BYTES = 4_000_000, 1_000_000
Wires = list[Nic]


def over_ssh(hosts: list[Host], launches: Launches) -> Wires:
    """As the hosts are."""
    return [Nic(host.nic, (host.address,)) for host in hosts]


def on_every_node(hosts: list[Host], launches: Launches) -> Wires:
    return over_ssh(hosts, launches)


def two_nics_and_names(hosts: list[Host], launches: Launches) -> Wires:
    """A second network, which the inventory names; as on Debian, a host's own name leads to its loopback."""
    wires = [Nic("ib0", (f"10.78.0.1{number}",)) for number in (1, 2, 3)]
    names = {f"fast{number}": f"10.78.0.1{number}" for number in (1, 2, 3)}
    for host, wire, entry, name in zip(hosts, wires, launches.fields["hosts"], names, strict=True):
        host.add_nic(Nic("ib0", (f"{wire.addresses[0]}/24",)))
        host.name_hosts({**names, host.name: "127.0.1.1"})
        entry["address"] = name
    return wires


def ipv6_only(hosts: list[Host], launches: Launches) -> Wires:
    wires = [Nic(host.nic, (f"fd77::1{number}",)) for number, host in enumerate(hosts, start=1)]
    for host, wire, entry in zip(hosts, wires, launches.fields["hosts"], strict=True):
        host.readdress(Nic(wire.name, (f"{wire.addresses[0]}/64",)))
        entry["address"] = wire.addresses[0]
    return wires


def start(hosts: list[Host], launches: Launches, case: Callable) -> list[Running]:
    """The launches of one run, the head's first: one of the control host, or one on every host, the head last."""
    if case is not on_every_node:
        return [launches.job(hosts[0], "all_reduce")]
    return [launches.job(host, "all_reduce", "--on-this-node") for host in reversed(hosts)][::-1]


def environments_of_workers(host: Host) -> list[dict[str, str]]:
    """Those of Ray's actors on a host."""
    found = []
    for process, words in host.commands().items():
        if " ".join(words).startswith("ray::Rank"):
            with suppress(psutil.NoSuchProcess):
                found.append(process.environ())
    return found


def check_wiring(host: Host, wire: Nic) -> None:
    environments = environments_of_workers(host)
    assert environments, f"no actor on {host.name}"
    for environment in environments:
        assert environment["GLOO_SOCKET_IFNAME"] == environment["TP_SOCKET_IFNAME"] == wire.name
        assert environment["VLLM_HOST_IP"] == wire.addresses[0]
        assert environment["ASCEND_QUANT_RUN"]


def check_token(hosts: list[Host], launches: Launches) -> None:
    """Ray's token is the same on all hosts, and once they have joined it is in no file of theirs."""
    (token,) = {one["RAY_AUTH_TOKEN"] for host in hosts for one in environments_of_workers(host)}
    folders = [launches.folder, *(host.path(folder) for host in hosts for folder in ("/tmp", "/root", "/dev/shm"))]
    files = [file for folder in folders for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
    assert len(files) > 100
    assert not [file for file in files if token.encode() in file.read_bytes()]


def sent(host: Host, nic: str) -> int:
    """Bytes that have left by an interface."""
    return int(host.run(["cat", f"/sys/class/net/{nic}/statistics/tx_bytes"]))


@pytest.mark.parametrize(
    "case",
    [over_ssh, *(pytest.param(case, marks=LONG) for case in (on_every_node, two_nics_and_names, ipv6_only))],
    ids=lambda case: case.__name__,
)
def test_the_hosts_meet_over_the_right_nic(hosts, launches, case):
    wires = case(hosts, launches)
    runs = start(hosts, launches, case)
    try:
        runs[0].wait_for("working on node1 node2 node3", FORM_SECONDS)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *(run.text for run in runs[1:])])) from None
    sums = runs[0].wait_for(r"^hosts 3, sums (.*)", REDUCE_SECONDS)[1]
    assert re.findall(r"[\d.]+", sums) == [str(SUM_OF_RANKS)] * 6
    for host, wire in zip(hosts, wires, strict=True):
        check_wiring(host, wire)
        assert sent(host, wire.name) > REDUCED_BYTES
        if wire.name != host.nic:
            assert sent(host, host.nic) < CHATTER_BYTES
    check_token(hosts, launches)
    launches.stay.unlink()
    assert [run.wait(END_SECONDS) for run in runs] == [0] * len(runs), "\n".join(run.text for run in runs)
