"""While a run with the socket filter is up, another host finds ssh alone, and another user nothing to talk to.

The run has Ray, verl's data plane (TransferQueue) and torch's store on both hosts. Its own user goes the same ways, so
that what the others do not find is there.
"""

import json
import sys
from pathlib import Path

from cluster.host import PROJECT, PYTHON, Host
from cluster.keys import Keys
from cluster.launches import LONG, Launches

pytestmark = LONG

FORM_SECONDS, SCAN_SECONDS, END_SECONDS = 400, 200, 90
SCAN = Path(__file__).with_name("scan.py")
NOBODY = 65534
INSTALLED = (PROJECT, Path(sys.prefix), Path(sys.base_prefix))  # a checkout may lie in /tmp
ZMQ = r"\x7f"  # in its greeting
PLACES = ("/tmp", "/dev/shm", "/run", "/var/tmp")
TRY_FILES = f"""
import os, sys
os.setgroups([]); os.setresuid(*[int(sys.argv[1])] * 3)
for place in {PLACES}:
    for folder, folders, files in os.walk(place):
        for path in [os.path.join(folder, name) for name in files + folders]:
            wanted = os.W_OK if os.path.isdir(path) else os.R_OK
            if not os.path.islink(path) and (os.access(path, os.W_OK) or os.access(path, wanted)):
                print(path)
"""


def scan(host: Host, hosts: list[Host], user: int = 0) -> list[dict[int, str | None]]:
    """What each of the hosts answers to a user of a host, by port; of those where a process listens."""
    ports = {one.address: sorted(listened(one)) for one in hosts}
    answers = json.loads(host.run([PYTHON, "-I", SCAN, str(user), json.dumps(ports)], SCAN_SECONDS).splitlines()[-1])
    return [{int(port): said for port, said in answers[address].items()} for address in ports]


def listened(host: Host) -> set[int]:
    """The ports on which processes of the host listen, as the kernel tells them."""
    tables = [host.path("/proc") / str(1) / "net" / name for name in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table.read_text().splitlines()[1:]]
    return {int(row[1].rpartition(":")[2], 16) for row in rows if row[3] == "0A"}


def test_strangers_and_other_users_find_nothing_of_a_run(hosts: list[Host], keys: Keys, tmp_path: Path):
    launches, members, stranger = Launches(tmp_path, hosts[:2], keys), hosts[:2], hosts[2]
    launches.fields["socket_filter"] = True
    run = launches.job(members[0], "data_plane")
    run.wait_for(r"^stores .* sums \[45, 45\]", FORM_SECONDS)
    assert [set(ports) for ports in scan(stranger, members)] == [{host.ssh_port} for host in members]
    for host in members:
        for user, heard in ((0, True), (NOBODY, False)):
            answers = scan(host, [host], user)[0]
            assert len(answers) > 10
            assert any(said and ZMQ in said for said in answers.values()) == heard  # the data plane
            assert heard or {port for port, said in answers.items() if said is not None} == {host.ssh_port}
            found = [Path(line) for line in host.run([PYTHON, "-I", "-c", TRY_FILES, str(user)]).splitlines()]
            assert bool([path for path in found if not any(map(path.is_relative_to, INSTALLED))]) == heard, found
    launches.stay.unlink()
    assert run.wait(END_SECONDS) == 0, run.text
