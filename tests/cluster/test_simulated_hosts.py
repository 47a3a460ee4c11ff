"""The simulated hosts are what the other tests take them for."""

import time

import psutil
import pytest

from cluster.host import Host, Nic
from cluster.launches import LONG
from cluster.leftovers import check_clean

pytestmark = LONG

SERVE = """
import socket, time
listener = socket.create_server(("0.0.0.0", 7000))
print("listening")
connection, _ = listener.accept()
print("accepted")
time.sleep(1e6)
"""
READ = "import socket; socket.create_connection(('10.77.0.12', 7000)).recv(1); print('closed')"


def ssh(keys, host: Host, *command: str) -> list[str]:
    return ["ssh", "-i", str(keys.identity), "-p", str(host.ssh_port), host.address, *command]


def test_each_is_a_machine_of_its_own_and_reaches_the_others_by_ssh(hosts, keys):
    first = hosts[0]
    assert [first.run(ssh(keys, host, "hostname; ls /sys/class/net")).split() for host in hosts] == [
        ["node1", "bond0", "lo"],
        ["node2", "enp67s0f0", "lo"],
        ["node3", "eno1", "lo"],
    ]
    for folder in ("/tmp", "/dev/shm", "/etc", "/root"):
        hosts[1].run(["touch", f"{folder}/mine"])
        assert hosts[1].path(f"{folder}/mine").exists()
        assert not hosts[0].path(f"{folder}/mine").exists()


def test_what_runs_on_one_is_not_seen_on_another(hosts):
    hosts[0].settle(["sleep", "54321"])
    assert "54321" in hosts[0].run(["ps", "ax"])
    assert "54321" not in hosts[1].run(["ps", "ax"])


@pytest.mark.parametrize("disaster", ["kill", "cut", "freeze"])
def test_a_disaster_is_silent(hosts, disaster):
    server = hosts[1].begin(["python3", "-uc", SERVE])
    server.wait_for("listening", seconds=10)
    client = hosts[0].begin(["python3", "-uc", READ])
    server.wait_for("accepted", seconds=10)
    getattr(hosts[1], disaster)()
    time.sleep(1)
    assert client.text == "" and client.group()
    client.end()
    if hosts[1].is_on:
        hosts[1].thaw()
        server.end()


def test_restarted_it_has_forgotten_all_but_its_name_and_address(hosts, keys):
    hosts[1].run(["touch", "/tmp/mine"])
    hosts[1].restart()
    assert not hosts[1].path("/tmp/mine").exists()
    assert hosts[0].run(ssh(keys, hosts[1], "hostname")).split() == ["node2"]


def test_more_interfaces_other_addresses_names_and_ipv6(hosts, keys):
    first, second, third = hosts
    second.add_nic(Nic("ib0", ("10.78.0.12/24",)))
    first.add_nic(Nic("ib0", ("10.78.0.11/24",)))
    third.readdress(Nic("eno1", ("fd77::13/64",)))
    first.readdress(Nic("bond0", ("10.77.0.11/24", "fd77::11/64")))
    first.name_hosts({"second": "10.78.0.12", "third": "fd77::13"})
    assert first.run(["ssh", "-i", keys.identity, "second", "hostname"]).split() == ["node2"]
    assert first.run(["ssh", "-i", keys.identity, "-p", "2222", "third", "hostname"]).split() == ["node3"]


def test_ctrl_c_reaches_the_command_and_its_children(hosts):
    running = hosts[0].begin(["bash", "-c", "trap 'echo caught; exit 130' INT; sleep 1000"])
    while len(running.group()) < 2:
        time.sleep(0.05)
    running.press_ctrl_c()
    assert running.wait(5) == 130
    assert running.text == "caught\n"


def test_the_check_sees_what_is_left_and_what_is_gone(hosts):
    running = hosts[1].begin(["sleep", "1234"])
    while not running.group():
        time.sleep(0.05)
    victim = hosts[2].settle(["sleep", "5678"]).group()[0]
    victim.kill()
    psutil.wait_procs([victim], timeout=5)
    with pytest.raises(AssertionError) as failure:
        check_clean(hosts, seconds=1)
    assert "node2: left:" in str(failure.value) and "sleep 1234" in str(failure.value)
    assert "node3: gone:" in str(failure.value) and str(victim.pid) in str(failure.value)
    running.end()
    hosts[2].residents.remove(victim)
