"""What keeps a cluster from forming: the launch ends by itself and names each host, with what is wrong there.

Every case is one that users report. The words that are looked for are facts of the case (an address, a port, a NIC,
what ssh said), not the launcher's sentences.
"""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.host import Host
from cluster.launches import LONG, Launches

NOT_FORMED = 3
ANSWER_SECONDS = 90
LISTEN = (
    "import socket, time; s = socket.socket(); s.bind(('', {port})); s.listen(); print('listening'); time.sleep(1e6)"
)


def is_off(host: Host, launches: Launches, folder: Path) -> None:
    host.kill()
    launches.fields["join_seconds"] = 10


def refuses_ssh(host: Host, launches: Launches, folder: Path) -> None:
    host.stop_sshd()
    launches.fields["join_seconds"] = 10


def has_its_port_taken(host: Host, launches: Launches, folder: Path) -> None:
    host.settle(["python3", "-uc", LISTEN.format(port=20000)]).wait_for("listening", 10)


def has_other_nics(host: Host, launches: Launches, folder: Path) -> None:
    launches.fields["hosts"][2]["nic"] = "bond0"


def has_another_ray(host: Host, launches: Launches, folder: Path) -> None:
    """A package is what its metadata says; Python takes the first that it finds."""
    metadata = folder / "other" / "ray-2.9.3.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Metadata-Version: 2.1\nName: ray\nVersion: 2.9.3\n")
    host.restart({"PYTHONPATH": str(folder / "other")})


CASES: dict[Callable[[Host, Launches, Path], None], tuple[str, ...]] = {  # what is wrong with node3
    is_off: ("[Nn]o route|timed out",),
    refuses_ssh: ("[Cc]onnection refused",),
    has_its_port_taken: (r"\b20000\b", "python3"),
    has_other_nics: ("bond0", "eno1"),
    has_another_ray: (r"ray 2\.9\.3",),
}


@pytest.mark.parametrize(
    "spoil",
    [spoil if spoil is refuses_ssh else pytest.param(spoil, marks=LONG) for spoil in CASES],
    ids=lambda spoil: spoil.__name__,
)
def test_one_line_says_which_host_and_why(hosts, launches, tmp_path, spoil):
    spoil(hosts[2], launches, tmp_path)
    run = launches.job(hosts[0], "all_reduce")
    assert run.wait(ANSWER_SECONDS) == NOT_FORMED, run.text
    said = [line for line in run.text.splitlines() if line.lstrip().startswith(f"{hosts[2].address}: ")]
    assert len(said) == 1, run.text
    for fact in CASES[spoil]:
        assert re.search(fact, said[0]), f"{fact!r} is not in {said[0]!r}"
    assert "Traceback" not in run.text
