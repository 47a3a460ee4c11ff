"""`python -m launch node` as a process: what it does with its tasks, and that it ends what it is to end alone."""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from cluster_cases import PROJECT, new_run, node_plan
from naming import has_line_naming

from launch.nodes import launcher
from launch.plan import NodePlan
from launch.system.processes import MARK, of_run

NODE = [sys.executable, "-m", "launch", "node"]


def talk(text: str) -> tuple[int, dict | None, str]:
    """Exit code, answer and stderr of a part that is told `text`."""
    done = subprocess.run(NODE, input=text, capture_output=True, text=True, cwd=PROJECT, timeout=120)
    return done.returncode, json.loads(done.stdout) if done.stdout else None, done.stderr


def told(errors: str, word: str) -> list[str]:
    """The lines for the user with this word."""
    return [line.removeprefix(f"{word}: ") for line in errors.splitlines() if line.startswith(f"{word}: ")]


def sleeper(**variables: str) -> subprocess.Popen:
    return subprocess.Popen(["sleep", "600"], env=os.environ | variables, start_new_session=True)


def test_by_hand_it_says_what_it_is_for():
    code, answer, errors = talk('{"run": 5}\n')
    assert (code, answer) == (2, None) and "./run.sh train" in errors


def test_end_run_ends_the_run_and_nothing_else():
    run = new_run()
    ours, other, plain = sleeper(**{MARK: run}), sleeper(**{MARK: f"{run}-other"}), sleeper()
    try:
        code, answer, _ = talk(json.dumps({"end_run": run}) + "\n")
        assert (code, answer) == (0, {"count": 1})
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
        assert talk(json.dumps({"end_run": run}) + "\n")[:2] == (0, {"count": 1})
        assert process.wait(5) == 0
    assert of_run(run) == []


def test_facts_of_a_right_host_and_of_a_wrong_one(tmp_path):
    code, facts, _ = talk(json.dumps({"facts": asdict(node_plan())}) + "\n")
    assert code == 0 and facts["problems"] == []
    assert facts["chosen"]["wire"]["address"] == "127.0.0.1" and facts["chosen"]["devices"] == [0]
    wrong = node_plan(needs=[str(tmp_path / "absent")], nic="nosuch0")
    code, facts, _ = talk(json.dumps({"facts": asdict(wrong)}) + "\n")
    problems = facts["problems"]
    assert code == 0 and facts["chosen"]["wire"] is None
    assert len(problems) == 2 and "nosuch0" in problems[0] and "absent" in problems[1]


def test_the_end_of_stdin_ends_a_part(tmp_path):
    """A worker that waits for its head; nobody listens on the head's port, so no Ray is started."""
    plan = node_plan(role="worker", job=None, out=str(tmp_path))
    code, _, errors = talk(json.dumps({"run": asdict(plan)}) + "\n\n")
    assert code == 0 and told(errors, "status") and not told(errors, "error"), errors


def begin(plan: NodePlan, folder: Path) -> subprocess.Popen:
    """A worker's part that has its task."""
    part = subprocess.Popen(NODE, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=PROJECT)
    part.stdin.write(json.dumps({"run": asdict(replace(plan, role="worker", job=None, out=str(folder)))}) + "\n")
    part.stdin.flush()
    return part


@pytest.mark.parametrize(("head", "named"), [("nosuch.invalid", "nosuch.invalid"), ("127.0.0.1", ".ray_token")])
def test_a_worker_that_waits_says_for_what(tmp_path, head, named):
    """The head's name is wrong, or its output folder is not this host's."""
    with socket.create_server(("127.0.0.1", 0)) as there:
        ports = node_plan().ports | {"ray": there.getsockname()[1]}
        with begin(node_plan(head=head, ports=ports, join_seconds=20), tmp_path) as part:
            assert any(named in line for line in part.stderr if line.startswith("status: "))
            part.stdin.close()


def test_a_part_that_somebody_else_ends_says_so(tmp_path):
    with begin(node_plan(), tmp_path) as part:
        next(line for line in part.stderr if line.startswith("status: "))
        part.send_signal(signal.SIGTERM)
        (why,) = told(part.stderr.read(), "error")
    assert part.returncode == 1 and "SIGTERM" in why


def test_silence_of_the_launcher_ends_a_part(monkeypatch):
    monkeypatch.setattr(launcher, "SILENT_SECONDS", 0.5)
    here, launchers = os.pipe()
    monkeypatch.setattr(sys, "stdin", os.fdopen(here))
    watched = launcher.Launcher(sys.stdout)
    watched._watch()  # returns when it has ended the part
    os.close(launchers)
    assert watched.ended.is_set() and "launcher" in watched.why


def test_leftovers_are_ended_before_the_checks_and_a_host_that_cannot_take_part_says_why(tmp_path):
    run = new_run()
    old = sleeper(**{MARK: run})
    try:
        task = {"run": asdict(node_plan(run, address="203.0.113.7", out=str(tmp_path)))}
        code, _, errors = talk(json.dumps(task) + "\n")
        assert has_line_naming(told(errors, "note")[0], "1 processes")
        assert code == 3 and "203.0.113.7" in told(errors, "error")[-1]
        assert old.wait(5) == -15
    finally:
        old.kill()
