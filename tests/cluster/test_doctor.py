"""`./run.sh doctor --cluster` over ssh: three hosts that answer and reach each other, and one that is off."""

import json

import pytest

from cluster.host import PROJECT, PYTHON
from cluster.launches import Launches

pytestmark = pytest.mark.long("launch/doctor", "launch/cluster/inventory.py", "tests/cluster")


@pytest.mark.parametrize("off", [False, True])
def test_every_host_answers_for_itself(hosts, launches: Launches, off: bool):
    if off:
        hosts[2].kill()
    command = [PYTHON, "-m", "launch", "doctor", "--cluster", launches.inventory, "--json"]
    running = hosts[0].begin(command, launches.folder, PYTHONPATH=str(PROJECT))
    assert running.wait(120) == int(off), running.text
    report = json.loads(running.text[running.text.index("{") :])  # after what a slow machine says on stderr
    there = hosts[:2] if off else hosts
    assert [host["host"] for host in report["hosts"]] == [host.address for host in there]
    found = {one["check"]: one for one in report["together"]}
    assert found["hosts.traits"]["level"] == "ok"
    assert (found["hosts.answer"]["level"], hosts[2].address in found["hosts.answer"]["what"]) == (
        "error" if off else "ok",
        off,
    )
    for host in report["hosts"]:
        said = {finding["check"]: finding for finding in host["findings"]}
        assert said["hosts.reach"]["level"] == ("error" if off else "ok")
        assert not off or hosts[2].address in said["hosts.reach"]["what"]
        assert said["network.address"]["level"] == "ok"
