"""What the control host concludes: clocks, who is missing and why, who is dead, how it ended; and what it shows."""

import io
import time
from email.utils import formatdate

import pytest
from naming import has_line_naming
from rich.console import Console

from launch.cluster.hosts import DONE, FAILED, SILENT_SECONDS, HostState, JobEnd, dead, differing, missing, verdict
from launch.cluster.record import Status
from launch.nodes.checks import Clock
from launch.nodes.worker import measured

PORTS = {"ray": 6766, "dashboard": 8260, "workers": "20000-29999"}
VERSIONS = {"ray": "2.60.0", "python": "3.11.2"}


class Reachable:
    """A channel that takes orders and says nothing."""

    def send(self, order: dict) -> None:
        pass


def host(address: str, **state: object) -> HostState:
    made = HostState(address, Reachable(), facts={"versions": dict(VERSIONS)})
    made.clock.take(100.0, 100.2, 100.1)
    for name, value in state.items():
        setattr(made, name, value)
    return made


@pytest.mark.parametrize(
    ("asked", "answered", "theirs", "wrong"),
    [
        (100.0, 100.1, 104.9, None),
        (100.0, 100.1, 105.2, "5 s ahead of"),
        (100.0, 100.1, 90.0, "10 s behind"),
        (100.0, 112.0, 116.0, None),  # 10 s from the middle, of which the way may be 6
        (100.0, 112.0, 118.0, "12 s ahead of"),
    ],
)
def test_the_clocks_difference_has_the_way_measured_out(asked, answered, theirs, wrong):
    clock = Clock()
    clock.take(asked, answered, theirs)
    assert (clock.wrong() is None) == (wrong is None)
    assert wrong is None or wrong in clock.wrong()


@pytest.mark.parametrize(
    ("ahead", "wrong"),
    [(4.9, None), (-4.9, None), (7.0, "7 s ahead"), (-90.0, "90 s behind")],
)
def test_the_date_of_an_answer_tells_the_heads_clock_to_a_second(ahead, wrong):
    theirs = 1_700_000_000.4  # the head answers then, and names the whole second
    date = formatdate(int(theirs), usegmt=True)
    found = measured(theirs + ahead - 0.1, theirs + ahead + 0.1, date).wrong("the head's")
    assert (found is None) == (wrong is None) and (wrong is None or has_line_naming(found, wrong, "the head's"))


def test_hosts_that_differ_from_the_head_are_named():
    late = host("c")
    late.clock = Clock(offset=-60.0, error=0.1)
    hosts = [host("a"), host("b", facts={"versions": VERSIONS | {"ray": "2.59.0"}}), late]
    found = differing(hosts)
    assert [address for address, _ in found] == ["b", "c"]
    assert "ray 2.59.0, the head has 2.60.0" in found[0][1]
    assert "60 s behind" in found[1][1]
    assert differing([host("a"), host("b")]) == []


def test_every_missing_host_has_its_reason():
    head = host("a", joined=True, started=True)
    hosts = [
        head,
        host("refused", facts=None, passing="ssh is refused"),
        host("slow", facts=None),
        host("stuck", last_line="Failed to connect to GCS"),
        host("firewall", started=True),
        HostState("absent"),
    ]
    reasons = dict(missing(hosts, PORTS))
    assert list(reasons) == ["refused", "slow", "stuck", "firewall", "absent"]
    assert reasons["refused"] == "ssh is refused"
    assert "checks" in reasons["slow"]
    assert "Failed to connect to GCS" in reasons["stuck"]
    assert "6766" in reasons["firewall"] and "20000-29999" in reasons["firewall"]
    assert "--on-this-node" in reasons["absent"]


def test_a_host_is_dead_when_a_beat_has_no_answer_for_long():
    one = host("b", last_line="Killed")
    one.beat()
    assert dead([one]) == ()
    one.waited = time.monotonic() - SILENT_SECONDS - 1
    lines = dead([one])
    assert len(lines) == 1 and lines[0].startswith("b: silent for 16 s") and lines[0].endswith("last words: Killed")


def test_a_pause_of_the_control_host_is_no_silence_of_the_others():
    one = host("b")
    one.beat()
    one.waited = time.monotonic() - 3600  # suspended for an hour; the answer lay in the pipe
    one.hear()
    one.beat()
    assert dead([one]) == ()


def test_a_failed_job_waits_for_hosts_that_may_have_died():
    job = JobEnd("FAILED", "ActorDiedError", time.monotonic())
    living, dying = host("a", heard=job.moment + 1), host("b", heard=job.moment - 1)
    assert verdict([living, dying], job) is None
    dying.waited = time.monotonic() - SILENT_SECONDS
    outcome = verdict([living, dying], job)
    assert outcome.code == FAILED
    assert outcome.lines[0].startswith("b: silent") and outcome.lines[1:] == ("the job ended: FAILED",)
    both = [host("a", heard=job.moment + 1), host("b", heard=job.moment + 1)]
    assert verdict(both, job).lines == ("the job ended: FAILED",)
    assert verdict(both, JobEnd("SUCCEEDED", "", time.monotonic())).code == DONE
    assert verdict(both, None) is None and verdict([*both, host("c", problem="killed")], None).code == FAILED


def test_without_a_terminal_every_change_is_a_plain_line():
    output = io.StringIO()
    console = Console(file=output, force_terminal=False, width=200, soft_wrap=True)
    with Status(console, hosts=2) as status:
        status.change(joined=1, doing="waiting for b")
        status.change(joined=1, doing="waiting for b")
        status.change(joined=2, doing="joined")
        status.change(job="RUNNING")
        status.say("[bold] is no markup")
        status.driver("Total training steps: 100")
        status.driver("\x1b[36m(TaskRunner pid=7)\x1b[0m step:12 - loss:0.5")
    text = output.getvalue()
    assert "\x1b" not in text
    assert "[bold] is no markup\n" in text
    assert text.count("joined 1/2 · waiting for b\n") == 1
    assert "joined 2/2 · job RUNNING · step 12 of 100" in text
    assert "(TaskRunner pid=7) step:12 - loss:0.5" in text
    assert (status.step, status.steps) == (12, 100)
