"""What keeps a cluster from forming: the launch ends by itself and names each host, with what is wrong there.

Every case is one that users report. The words that are looked for are facts of the case (an address, a port, a NIC,
what ssh said), not the launcher's sentences.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from cluster.host import Host, Nic
from cluster.keys import Keys
from cluster.launches import LONG, Launches
from cluster.tools import clock_library

NOT_FORMED = 3
ANSWER_SECONDS = 90
LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('', {port})); s.listen(); print('listening'); time.sleep(1e6)"
)


@dataclass
class Setting:
    """Three hosts, of which node3 (the last of the inventory) is to be spoiled."""

    hosts: list[Host]
    launches: Launches
    keys: Keys
    folder: Path
    spoiled: Host = field(init=False)

    def __post_init__(self) -> None:
        self.spoiled = self.hosts[2]

    def entry(self) -> dict:
        """The spoiled host's entry in the inventory."""
        return self.launches.fields["hosts"][2]


def is_off(setting: Setting) -> None:
    setting.spoiled.kill()
    setting.launches.fields["join_seconds"] = 10


def refuses_ssh(setting: Setting) -> None:
    setting.spoiled.stop_sshd()
    setting.launches.fields["join_seconds"] = 10


def knows_no_key(setting: Setting) -> None:
    setting.entry()["ssh"]["key"] = str(setting.keys.stranger)


def has_its_port_taken(setting: Setting) -> None:
    setting.spoiled.settle(["python3", "-uc", LISTEN.format(port=20000)]).wait_for("listening", 10)


def has_other_nics(setting: Setting) -> None:
    setting.entry()["nic"] = "bond0"


def has_the_address_on_another_nic(setting: Setting) -> None:
    setting.spoiled.add_nic(Nic("ib0", ("10.78.0.13/24",)))
    setting.entry()["nic"] = "ib0"


def carries_another_address(setting: Setting) -> None:
    """Reached by a name that leads elsewhere there, as behind NAT."""
    for host in setting.hosts:
        host.name_hosts({"third": "10.77.0.13" if host is not setting.spoiled else "10.77.0.12"})
    setting.entry()["address"] = "third"


def takes_its_name_for_loopback(setting: Setting) -> None:
    for host in setting.hosts:
        host.name_hosts({"node3": "127.0.1.1" if host is setting.spoiled else "10.77.0.13"})
    setting.entry()["address"] = "node3"


def another_clock(folder: Path) -> dict[str, str]:
    """Variables with which a process is two minutes ahead."""
    return {"LD_PRELOAD": str(clock_library(folder, 120))}


def has_another_clock(setting: Setting) -> None:
    setting.spoiled.restart(another_clock(setting.folder))


def has_another_ray(setting: Setting) -> None:
    """A package is what its metadata says; Python takes the first that it finds."""
    metadata = setting.folder / "other" / "ray-2.9.3.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.3\n")
    setting.spoiled.restart({"PYTHONPATH": str(setting.folder / "other")})


CASES: dict[Callable[[Setting], None], tuple[str, ...]] = {
    is_off: ("10.77.0.13", "[Nn]o route|timed out"),
    refuses_ssh: ("10.77.0.13", "[Cc]onnection refused"),
    knows_no_key: ("10.77.0.13", "Permission denied"),
    has_its_port_taken: ("10.77.0.13", r"\b20000\b", "python3"),
    has_other_nics: ("10.77.0.13", "bond0", "eno1"),
    has_the_address_on_another_nic: ("10.77.0.13", "ib0", "eno1"),
    carries_another_address: ("third", r"10\.77\.0\.12", "eno1"),
    takes_its_name_for_loopback: ("node3", r"127\.0\.1\.1"),
    has_another_clock: ("10.77.0.13", r"clock.* 1(19|20|21) s ahead"),
    has_another_ray: ("10.77.0.13", r"ray 2\.9\.3"),
}


@pytest.mark.parametrize(
    "spoil",
    [spoil if spoil is refuses_ssh else pytest.param(spoil, marks=LONG) for spoil in CASES],
    ids=lambda spoil: spoil.__name__,
)
def test_one_line_says_which_host_and_why(hosts, launches, keys, tmp_path, spoil):
    spoil(Setting(hosts, launches, keys, tmp_path))
    host, *facts = CASES[spoil]
    run = launches.job(hosts[0], "all_reduce")
    assert run.wait(ANSWER_SECONDS) == NOT_FORMED, run.text
    said = [line for line in run.text.splitlines() if line.lstrip().startswith(f"{host}: ")]
    assert len(said) == 1, run.text
    for fact in facts:
        assert re.search(fact, said[0]), f"{fact!r} is not in {said[0]!r}"
    assert "Traceback" not in run.text


@LONG
def test_another_clock_where_no_control_host_compares(hosts, launches, tmp_path):
    """--on-this-node: a worker asks the head, says it in one line, and does not join."""
    environments = [{}, {}, another_clock(tmp_path)]
    runs = [
        launches.job(host, "all_reduce", "--on-this-node", **environment)
        for host, environment in zip(hosts, environments, strict=True)
    ]
    assert runs[2].wait(ANSWER_SECONDS) == NOT_FORMED, runs[2].text
    said = [line for line in runs[2].text.splitlines() if "clock skew" in line]
    assert len(said) == 1 and re.search(r" 1(19|20|21) s ahead", said[0]), runs[2].text
    for run in runs[:2]:
        run.press_ctrl_c()
    assert [run.wait(ANSWER_SECONDS) for run in runs[:2]] == [130, 130], runs[0].text + runs[1].text
