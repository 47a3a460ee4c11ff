"""A host whose network is cut in mid-run: it is named within 30 s, and on both sides everything ends by itself."""

import re
import time

import psutil

from cluster.host import Host
from cluster.leftovers import check_clean

FORM_SECONDS, REPORTED_SECONDS = 330, 30
END_SECONDS = 120  # the cut-off host waits for its head, then ends its own


def of_runs(host: Host) -> list[psutil.Process]:
    """The processes of a host that any run has started, by the run's mark; those of the system have none."""
    found = []
    for process in host.processes() - host.residents:
        try:
            if "ASCEND_QUANT_RUN" in process.environ():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def test_a_host_that_is_cut_off_is_reported_and_ends_its_own_part(hosts, launches):
    run = launches.job(hosts[0], "all_reduce")
    run.wait_for("^hosts 3, sums ", FORM_SECONDS)
    before, cut = len(run.text), time.monotonic()
    hosts[2].cut()
    run.wait_for(rf"^{re.escape(hosts[2].address)}: ", 2 * REPORTED_SECONDS, after=before)
    assert time.monotonic() - cut < REPORTED_SECONDS, run.text
    assert of_runs(hosts[2])
    assert run.wait(END_SECONDS) == 1, run.text
    check_clean(hosts[:2], seconds=2)
    while of_runs(hosts[2]):
        assert time.monotonic() - cut < END_SECONDS, of_runs(hosts[2])
        time.sleep(1)
    hosts[2].kill()  # sshd would wait for its lost connection much longer
