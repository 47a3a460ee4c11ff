"""Inventories: the examples, what a file may say, and errors that name the key and what to write."""

from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
import yaml
from naming import has_line_naming, line_naming

from launch import LaunchError
from launch.cluster.inventory import FOLDER, Inventory, load, names

FOR_DOCUMENTS = [ip_network(one) for one in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24", "2001:db8::/32")]
SMALL = {"stack": "cpu", "hosts": [{"address": "192.0.2.1"}]}


def written(folder: Path, tree: dict) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(tree))
    return str(file)


def test_the_examples_are_valid_name_nobodys_hosts_and_are_of_each_kind_of_stack():
    examples = {name: load(name) for name in names()}
    assert {one.stack for one in examples.values()} >= {"cpu", "cuda13", "ascend-cann9.1"}
    assert all((FOLDER / f"{name}.yaml").read_text().startswith("# ") for name in examples)
    for host in (host for one in examples.values() for host in one.hosts):
        of_documents = host.address.endswith(".example") or any(
            ip_address(host.address) in network for network in FOR_DOCUMENTS
        )
        assert of_documents, host.address


def test_a_hosts_ssh_goes_before_the_inventorys():
    tree = {"stack": "cpu", "ssh": {"user": "ann", "port": 22}, "hosts": [{"address": "a", "ssh": {"port": 2222}}]}
    inventory = Inventory.model_validate(tree)
    assert inventory.ssh_of(inventory.hosts[0]).model_dump() == {"user": "ann", "port": 2222, "key": None}


@pytest.mark.parametrize(
    ("tree", "said"),
    [
        ({"host": []}, "host: … hosts?"),
        ({"stack": "cpu3"}, "stack: 'cpu3' is wrong"),
        ({"hosts": []}, "hosts: [] is wrong"),
        ({"hosts": [{"adress": "a"}]}, "hosts.0.adress: … address?"),
        ({"hosts": [{"address": "a", "devices": 0}]}, "hosts.0.devices: 0 is wrong: … auto"),
        ({"hosts": [{"address": "a", "devices": [1, 1]}]}, "hosts.0.devices: [1, 1] is wrong"),
        ({"hosts": [{"address": "a", "ssh": {"prot": 2}}]}, "hosts.0.ssh.prot: … port?"),
        ({"hosts": [{"address": "a"}, {"address": "a"}]}, "hosts: a"),
        ({"hosts": [{"address": "127.0.0.1"}, {"address": "a"}]}, "127.0.0.1 … loopback"),
        ({"mounts": ["/a"]}, "mounts.0: '/a' is wrong"),
        ({"mounts": ["/a:/a"]}, "mounts: … image"),
        ({"shared": ["data"]}, "shared.0: 'data' is wrong"),
        ({"ports": {"workers": "5-2"}}, "ports.workers: '5-2' is wrong: … LOW-HIGH"),
        ({"environment": {"RAY_ADDRESS": "x"}}, "RAY_ADDRESS … another Ray cluster"),
        ({"project": "/"}, "project: "),
        *(
            ({"hosts": [{"address": one}, {"address": other}]}, f"hosts: {other}")
            for one, other in (("2001:db8::1", "2001:db8:0:0::1"), ("node1", "NODE1"))
        ),
        *(({"hosts": [{"address": one}, {"address": "a"}]}, f"{one} … loopback") for one in ("127.0.0.2", "localhost")),
        *(
            ({"hosts": [{"address": one}]}, "hosts.0.address: ")
            for one in ("root@h1", "192.0.2.1:22", "", "-oX=x", "a;b")
        ),
        *(({"ssh": {"user": one}}, "ssh.user: ") for one in ("root;id", "-oProxyCommand=x", "$(id)")),
        *(({"image": one}, "image: ") for one in ("", "x;id", "--privileged")),
        ({"image": "i", "mounts": ["/a,readonly=false:/b"]}, "mounts.0: "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, tree: dict, said: str):
    file = written(tmp_path, SMALL | tree)
    with pytest.raises(LaunchError) as raised:
        load(file)
    lines = str(raised.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    assert any(has_line_naming(line, said) for line in lines), lines


def test_a_broken_file_and_a_name_that_there_is_not(tmp_path: Path):
    (tmp_path / "mine.yaml").write_text("- a")
    for name, said in ((str(tmp_path / "mine.yaml"), tmp_path / "mine.yaml"), ("a2-2-node", "a2-2-nodes")):
        with pytest.raises(LaunchError, match=line_naming(said)):
            load(name)


@pytest.mark.parametrize(
    "address", ["192.0.2.1", "2001:db8::1", "fe80::1%eth0", "node1", "node-1.example.org.", "n_1", "1a", "127.0.0.1"]
)
def test_what_a_host_may_be_called(address: str):
    assert Inventory.model_validate(SMALL | {"hosts": [{"address": address}]}).hosts[0].address == address
