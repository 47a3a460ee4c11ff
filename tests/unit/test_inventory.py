"""Inventories: the examples, what a file may say, and errors that name the key and what to write."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml

from launch.errors import LaunchError
from launch.inventory import Inventory, load, names, this_machine
from launch.inventory.files import FOLDER

FOR_DOCUMENTS = [ip_network(one) for one in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")]
SMALL = {"stack": "cpu", "hosts": [{"address": "192.0.2.1"}]}


def written(folder: Path, tree: dict) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(tree))
    return str(file)


@pytest.mark.parametrize("name", names())
def test_the_examples_are_valid_and_name_nobodys_hosts(name: str):
    inventory = load(name)
    assert (FOLDER / f"{name}.yaml").read_text().startswith("# ")
    for host in inventory.hosts:
        if host.address.endswith(".example"):
            continue
        assert any(ip_address(host.address) in network for network in FOR_DOCUMENTS), host.address


def test_there_are_examples_for_each_kind_of_stack():
    assert {load(name).stack for name in names()} >= {"cpu", "cuda13", "ascend-cann9.1"}


def test_a_small_file_is_enough(tmp_path: Path):
    inventory = load(written(tmp_path, SMALL))
    assert (inventory.ports.ray, inventory.ports.dashboard) == (6766, 8260)
    assert (inventory.hosts[0].nic, inventory.hosts[0].devices) == ("auto", "auto")


def test_a_hosts_ssh_goes_before_the_inventorys():
    tree = {"stack": "cpu", "ssh": {"user": "ann", "port": 22}, "hosts": [{"address": "a", "ssh": {"port": 2222}}]}
    inventory = Inventory.model_validate(tree)
    assert inventory.ssh_of(inventory.hosts[0]).model_dump() == {"user": "ann", "port": 2222, "key": None}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"host": []}, "host: no such key; did you mean hosts?"),
        ({"stack": "cpu3"}, "stack: 'cpu3' is wrong"),
        ({"hosts": []}, "hosts: [] is wrong"),
        ({"hosts": [{"adress": "a"}]}, "hosts.0.adress: no such key; did you mean address?"),
        ({"hosts": [{"address": "a b"}]}, "hosts.0.address: 'a b' is wrong"),
        ({"hosts": [{"address": "a", "devices": 0}]}, "hosts.0.devices: 0 is wrong: devices are auto, how many"),
        ({"hosts": [{"address": "a", "devices": [1, 1]}]}, "hosts.0.devices: [1, 1] is wrong"),
        ({"hosts": [{"address": "a", "devices": True}]}, "hosts.0.devices: True is wrong"),
        ({"hosts": [{"address": "a", "ssh": {"prot": 2}}]}, "hosts.0.ssh.prot: no such key; did you mean port?"),
        ({"hosts": [{"address": "a"}, {"address": "a"}]}, "a is there twice"),
        ({"hosts": [{"address": "127.0.0.1"}, {"address": "a"}]}, "127.0.0.1 is each machine's own loopback"),
        ({"mounts": ["/a"]}, "mounts.0: '/a' is wrong: a mount is written /on/the/host:/in/the/container"),
        ({"mounts": ["/a:/a:rw"]}, "mounts.0: '/a:/a:rw' is wrong"),
        ({"mounts": ["/a:/a"]}, "mounts: are for a container: name an image"),
        ({"shared": ["data"]}, "shared.0: 'data' is wrong: an absolute path is needed"),
        ({"ports": {"workers": "5-2"}}, "ports.workers: '5-2' is wrong: a range of ports is written LOW-HIGH"),
        ({"ports": {"ray": 70000}}, "ports.ray: 70000 is wrong"),
        ({"environment": {"A": 1}}, "environment.A: 1 is wrong"),
        ({"environment": {"A-B": "1"}}, "'A-B' is no name of an environment variable"),
        ({"environment": {"RAY_ADDRESS": "x"}}, "RAY_ADDRESS would tie this run's processes to another Ray cluster"),
        ({"join_seconds": 0}, "join_seconds: 0 is wrong"),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, tree: dict, said: str):
    file = written(tmp_path, SMALL | tree)
    with pytest.raises(LaunchError) as raised:
        load(file)
    lines = str(raised.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert any(said in line for line in lines), lines


@pytest.mark.parametrize("ports", ["auto", "60000-60010"])
def test_hccl_may_choose_its_ports(ports: str):
    assert Inventory.model_validate(SMALL | {"ports": {"hccl_host": ports}}).ports.hccl_host == ports


def test_every_mistake_is_said_at_once(tmp_path: Path):
    with pytest.raises(LaunchError) as raised:
        load(written(tmp_path, {"stack": "x", "hosts": [{"adress": "a"}]}))
    assert len(str(raised.value).splitlines()) == 3  # the stack, the missing address, the unknown key


def test_other_files_are_refused(tmp_path: Path):
    file = tmp_path / "mine.yaml"
    for text, said in (("stack: [", "is no YAML"), ("- a", "is no inventory")):
        file.write_text(text)
        with pytest.raises(LaunchError, match=said):
            load(str(file))
    with pytest.raises(LaunchError, match=r"no inventory 'a2-2-node'.*did you mean a2-2-nodes\?"):
        load("a2-2-node")


def test_this_machine_is_an_inventory():
    inventory = this_machine("cuda13")
    assert (inventory.stack, len(inventory.hosts), inventory.image) == ("cuda13", 1, None)
