"""Three simulated hosts for each test, made in under a second; what a test leaves on them fails it."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster.host import Host, Nic
from cluster.keys import Keys
from cluster.launches import Launches
from cluster.leftovers import check_clean
from cluster.switch import Switch
from cluster.tools import need_namespaces

NICS = ("bond0", "enp67s0f0", "eno1")
SSH_PORTS = (22, 22, 2222)
MakeHost = Callable[..., Host]


@pytest.fixture(scope="session")
def namespaces() -> None:
    need_namespaces()


@pytest.fixture
def keys(namespaces, tmp_path: Path) -> Keys:
    return Keys(tmp_path / "keys")


@pytest.fixture
def make_host(keys: Keys, tmp_path: Path) -> Iterator[MakeHost]:
    """Makes hosts on one switch; `tmp_path` is at the same place on all of them. Afterwards they must be clean."""
    switch, made = Switch(), []

    def make(name: str, nic: Nic, ssh_port: int = 22) -> Host:
        made.append(Host(name, nic, switch, keys, tmp_path, ssh_port))
        return made[-1]

    try:
        yield make
        check_clean(made)
    finally:
        for host in made:
            host.close()
        switch.close()


@pytest.fixture
def hosts(make_host: MakeHost) -> list[Host]:
    """node1, node2 and node3: 10.77.0.11 to 10.77.0.13, each on an interface of another name."""
    return [
        make_host(f"node{number}", Nic(nic, (f"10.77.0.1{number}/24",)), port)
        for number, (nic, port) in enumerate(zip(NICS, SSH_PORTS, strict=True), start=1)
    ]


@pytest.fixture
def launches(tmp_path: Path, hosts: list[Host], keys: Keys) -> Launches:
    """Launches on node1, node2 and node3; node1 is the head."""
    return Launches(tmp_path, hosts, keys)
