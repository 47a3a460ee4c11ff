"""`python -m launch node` as a process: what it does with its tasks, and that it ends what it is to end alone."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict

from cluster_cases import PROJECT, new_run, node_plan
from naming import has_line_naming

from launch.nodes import protocol
from launch.system.processes import MARK, of_run

NODE = [sys.executable, "-m", "launch", "node"]


def talk(text: str) -> tuple[int, list[dict], str]:
    """Exit code, events and stderr of a node that is told `text`."""
    done = subprocess.run(NODE, input=text, capture_output=True, text=True, cwd=PROJECT, timeout=120)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def sleeper(**variables: str) -> subprocess.Popen:
    return subprocess.Popen(["sleep", "600"], env=os.environ | variables, start_new_session=True)


def test_by_hand_it_says_what_it_is_for():
    code, events, errors = talk('{"run": 5}\n')
    assert (code, events) == (2, []) and "./run.sh train" in errors


def test_end_run_ends_the_run_and_nothing_else():
    run = new_run()
    ours, other, plain = sleeper(**{MARK: run}), sleeper(**{MARK: f"{run}-other"}), sleeper()
    try:
        code, events, _ = talk(json.dumps({"end_run": run}) + "\n")
        assert code == 0
        assert events == [{"event": "ended", "code": 0, "count": 1}]
        assert ours.wait(5) == -15
        assert other.poll() is None and plain.poll() is None
    finally:
        for process in (ours, other, plain):
            process.kill()
            process.wait()


# a process that starts another one before it ends, of which the one who told it knows nothing and which ignores SIGTERM
STARTS_ANOTHER = """
import signal, subprocess, sys
def leave(*_):
    stubborn = ["bash", "-c", "trap '' TERM; exec sleep 600"]
    subprocess.Popen(stubborn, start_new_session=True, stdout=subprocess.DEVNULL)
    sys.exit(0)
signal.signal(signal.SIGTERM, leave)
print("ready", flush=True)
signal.pause()
"""


def test_what_is_started_while_the_run_ends_is_ended_too():
    run = new_run()
    code = [sys.executable, "-c", STARTS_ANOTHER]
    with subprocess.Popen(code, env=os.environ | {MARK: run}, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        code, events, _ = talk(json.dumps({"end_run": run}) + "\n")
        assert code == 0 and events[-1]["count"] == 1
        assert process.wait(5) == 0
    assert of_run(run) == []


def test_facts_of_a_right_host_and_of_a_wrong_one(tmp_path):
    code, events, _ = talk(json.dumps({"facts": asdict(node_plan())}) + "\n")
    facts = events[-1]["facts"]
    assert code == 0 and facts["problems"] == []
    assert facts["chosen"]["wire"]["address"] == "127.0.0.1" and facts["chosen"]["devices"] == [0]
    wrong = node_plan(needs=[str(tmp_path / "absent")], nic="nosuch0")
    code, events, _ = talk(json.dumps({"facts": asdict(wrong)}) + "\n")
    problems = events[-1]["facts"]["problems"]
    assert code == 0 and events[-1]["facts"]["chosen"]["wire"] is None
    assert len(problems) == 2 and "nosuch0" in problems[0] and "absent" in problems[1]


def test_beats_are_answered_and_the_end_of_stdin_ends_a_waiting_node():
    plan = node_plan()
    task = json.dumps({"run": asdict(plan), "token": "t", "meeting": None})
    code, events, _ = talk(f'{task}\n{{"beat": 12.5}}\n')
    kinds = {event["event"]: event for event in events}
    assert code == 1 and "gone" in kinds["failed"]["why"]
    assert kinds["alive"]["asked"] == 12.5 and abs(kinds["alive"]["clock"] - time.time()) < 60
    assert "started" not in kinds and "ended" in kinds


def test_a_node_that_somebody_else_ends_says_so():
    """A worker that waits for its head; nobody listens on the head's port, so no Ray is started."""
    task = {"run": asdict(node_plan(role="worker", job=None)), "token": "t", "meeting": None}
    with subprocess.Popen(NODE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT) as node:
        node.stdin.write(json.dumps(task) + "\n" + json.dumps({"go": []}) + "\n")
        node.stdin.flush()
        assert json.loads(node.stdout.readline())["event"] == "checked"
        node.send_signal(signal.SIGTERM)
        events = [json.loads(line) for line in node.stdout]
    assert node.returncode == 1
    (why,) = [event["why"] for event in events if event["event"] == "failed"]
    assert has_line_naming(why, "SIGTERM")


def test_silence_of_the_control_host_ends_a_node(monkeypatch):
    monkeypatch.setattr(protocol, "SILENT_SECONDS", 0.5)
    told = protocol.Orders()
    told._watch()  # returns when it has ended the node
    assert told.ended.is_set() and "control host" in told.why


def test_leftovers_are_ended_before_the_checks_and_a_host_that_cannot_take_part_says_why():
    run = new_run()
    old = sleeper(**{MARK: run})
    try:
        task = {"run": asdict(node_plan(run, address="203.0.113.7")), "token": "t", "meeting": None}
        code, events, _ = talk(json.dumps(task) + "\n")
        assert events[0]["event"] == "note" and has_line_naming(events[0]["line"], "1 processes")
        assert code == 3 and events[-1]["event"] == "failed" and "203.0.113.7" in events[-1]["why"]
        assert old.wait(5) == -15
    finally:
        old.kill()
