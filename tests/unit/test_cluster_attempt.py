"""An attempt, with shell scripts as the hosts' parts: when it ends, with which code, lines and cause; what is shown."""

import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import pytest
from cluster_cases import node_plan, plan_of
from rich.console import Console

from launch.cluster import attempt as attempts
from launch.cluster.attempt import Attempt
from launch.cluster.desk import Desk, Interrupt, Logs, Outcome, Status
from launch.cluster.inventory import Host
from launch.cluster.record import Record

CHECKED = """echo 'status: {"doing": "starting Ray"}' >&2; """
FORMED = """echo 'status: {"joined": 2, "doing": "joined", "formed": true}' >&2; """
WAIT = "cat > /dev/null; "  # until the launcher closes stdin
RAISED = "raise KeyError('x')"


@pytest.fixture
def run(tmp_path, monkeypatch) -> Iterator[Callable[..., tuple[Outcome, str]]]:
    """run(head, worker, patient): the outcome of an attempt with these scripts as parts, and what was shown."""
    monkeypatch.setattr(attempts, "OTHERS_SECONDS", 3)
    monkeypatch.setattr(attempts, "AGAIN_SECONDS", 0.1)
    monkeypatch.setattr(attempts, "end_on", lambda *_: (0, ""))
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}

    def make(
        head: str, worker: str, patient: bool = False, seconds: int = 60, mine: Sequence[int] = (0, 1)
    ) -> tuple[Outcome, str]:
        plan, shown = plan_of(node_plan()), io.StringIO()
        hosts = [Host(address="a"), Host(address="b")]
        inventory = plan.inventory.model_copy(update={"hosts": hosts, "join_seconds": seconds})
        plan = replace(plan, inventory=inventory, nodes=plan.nodes * 2, local=[True] * 2)
        lines = [f"cd {tmp_path}; read -r task; {part}" for part in (head, worker)]
        monkeypatch.setattr(attempts, "command_of", lambda _, index: ["bash", "-c", lines[index]])
        record = Record.create(plan_of(node_plan()), tmp_path / "runs")
        with Status(Console(file=shown, width=200), 2) as status:
            desk = Desk(record, Logs(record.folder), status, Interrupt())
            outcome = Attempt(plan, desk, mine, patient).run()
        desk.logs.close()
        return outcome, shown.getvalue()

    yield make
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_the_heads_end_ends_all_and_its_output_is_the_drivers(run, tmp_path):
    head = f"{CHECKED}{FORMED}echo one; sleep 0.5; echo two"
    outcome, shown = run(head, f"{CHECKED}{WAIT}echo ended > worker; exit 0")
    assert outcome == Outcome(0)
    assert {"one", "two", "joined 2/2 · joined"} <= set(shown.splitlines())
    assert (tmp_path / "worker").read_text() == "ended\n"
    assert next(tmp_path.glob("runs/*/logs/driver.log")).read_text() == "one\ntwo\n"


@pytest.mark.parametrize(
    "head", [f"{CHECKED}{WAIT}", "echo 'error: no wire' >&2; sleep 1; exit 3"], ids=["good", "bad"]
)
def test_hosts_that_cannot_take_part_are_named_together(run, head):
    worker = "echo 'note: a limit' >&2; echo 'error: no data' >&2; echo 'error: port 1 is taken' >&2; exit 3"
    outcome, shown = run(head, worker)
    bad = ("a: no wire",) if "wire" in head else ()
    assert outcome == Outcome(3, (*bad, "b: no data; port 1 is taken"))
    assert "note: b: a limit\n" in shown


def test_a_line_of_the_head_about_another_host_begins_with_that_host(run):
    outcome, _ = run(f"{CHECKED}echo 'error: b: its Ray has not joined' >&2; exit 3", f"{CHECKED}{WAIT}")
    assert outcome == Outcome(3, ("b: its Ray has not joined",))


def test_a_host_that_is_starting_is_tried_again(run, tmp_path):
    refused = "echo 'ssh: connect to host b port 22: Connection refused' >&2; exit 255"
    worker = f"if [ -e tried ]; then {CHECKED}{WAIT}exit 0; else touch tried; {refused}; fi"
    assert run(f"{CHECKED}sleep 1; {FORMED}", worker)[0] == Outcome(0)
    outcome, _ = run(f"{CHECKED}{WAIT}", refused, seconds=1)
    assert outcome.code == 3 and outcome.lines[0].startswith("b: ssh: connect") and len(outcome.lines) == 1


def test_a_restart_is_patient_with_every_problem(run):
    taken = "echo >> tried; echo 'error: taken' >&2; sleep 1; exit 3"
    worker = f"if [ -e tried ] && [ $(wc -l < tried) = 4 ]; then {CHECKED}{WAIT}else {taken}; fi"
    assert run(f"{CHECKED}sleep 9; {FORMED}", worker, patient=True)[0].code == 0


@pytest.mark.parametrize("raised", [RAISED, "raise ConnectionResetError('by peer')", None])
def test_a_host_that_dies_ends_the_run_and_is_the_cause_unless_the_driver_has_one(run, raised):
    fail = f'{sys.executable} -c "{raised}" 2>&1; ' if raised else ""
    dies = f"{CHECKED}sleep 1; echo 'Timeout, server b not responding.' >&2; exit 255"
    outcome, _ = run(f"{CHECKED}{FORMED}{fail}{WAIT}exit 1", dies)
    assert outcome.code == 1 and outcome.lines[0].startswith("b: ssh: Timeout")
    assert outcome.cause.error.startswith("KeyError" if raised == RAISED else "b: ssh: Timeout")


def test_only_a_launcher_of_all_hosts_sends_them_rays_token(run, tmp_path):
    """Each host gets the same one on stdin, and it is in no file of the launcher; see also tests/cluster."""
    scripts = [f"""{CHECKED}{FORMED}echo "$task" > task-{name}; """ for name in "ab"]
    for mine in ([0, 1], [0]):
        assert run(f"{scripts[0]}sleep 1", f"{scripts[1]}{WAIT}", mine=mine)[0] == Outcome(0)
        tokens = [json.loads(file.read_text())["token"] for file in sorted(tmp_path.glob("task-*"))]
        if len(mine) == 1:
            assert tokens[0] is None
        else:
            assert len(tokens[0]) == 64 and tokens[0] == tokens[1]
            assert not [file for file in tmp_path.glob("runs/**/*.*") if tokens[0] in file.read_text()]


def test_a_host_that_is_lost_while_the_others_end_is_named(run):
    outcome, shown = run(
        f"{CHECKED}{FORMED}exit 1", f"{CHECKED}{WAIT}echo 'Timeout, server b not responding.' >&2; exit 255"
    )
    assert outcome.code == 1 and outcome.cause.error.startswith("b: ssh: Timeout")
    assert "b: ssh: Timeout" in shown


def test_ctrl_c_ends_the_parts_in_order(run, tmp_path):
    timer = threading.Timer(1, signal.raise_signal, [signal.SIGINT])
    timer.start()
    outcome, _ = run(f"{CHECKED}{FORMED}{WAIT}touch head", f"{CHECKED}{WAIT}touch worker")
    assert outcome == Outcome(130)
    assert (tmp_path / "head").exists() and (tmp_path / "worker").exists()


def test_after_a_second_ctrl_c_the_parts_still_end_what_they_started(run, tmp_path):
    timers = [threading.Timer(seconds, signal.raise_signal, [signal.SIGINT]) for seconds in (1, 2)]
    for timer in timers:
        timer.start()
    outcome, _ = run(f"{CHECKED}{FORMED}{WAIT}sleep 4; touch head", f"{CHECKED}{WAIT}")
    assert outcome == Outcome(130) and not (tmp_path / "head").exists()
    deadline = time.monotonic() + 30
    while not (tmp_path / "head").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


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


def test_output_that_nobody_reads_any_more_does_not_end_the_run(monkeypatch):
    class Gone(io.StringIO):
        def write(self, _: str) -> int:
            raise BrokenPipeError

    monkeypatch.setattr(os, "dup2", lambda *_: None)  # rich would replace pytest's stdout by /dev/null
    with Status(Console(file=Gone()), hosts=0) as status:
        status.say("ending")
        status.driver("step:12 - loss:0.5")
    assert status.step == 12
