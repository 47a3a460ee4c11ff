"""Records of runs and their logs: what they hold, which one `stop` takes, and names that may not leave the folder."""

import json
import os
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from cluster_cases import node_plan, plan_of
from naming import has_line_naming

from launch import LaunchError
from launch.cluster import run
from launch.cluster.desk import Logs
from launch.cluster.inventory import Host, Inventory, Ssh
from launch.cluster.record import Record, find


def test_a_record_holds_what_stop_needs_and_no_secret(tmp_path):
    node = node_plan(layers=[("shell", {"WANDB_API_KEY": "hush-hush"})])
    secret = {"WANDB_API_KEY": "hush-hush"}
    inventory = Inventory(stack="cpu", environment=secret, hosts=[Host(address="127.0.0.1", environment=secret)])
    record = Record.create(replace(plan_of(node), inventory=inventory), tmp_path)
    file = tmp_path / node.run / "run.json"
    told = json.loads(file.read_text())
    assert "hush" not in file.read_text()
    assert told["state"] == "running" and told["control"]["pid"] == psutil.Process().pid
    assert (told["run"], told["local"]) == (node.run, [True])
    assert list(file.parent.iterdir()) == [file]
    assert Record.load(file.parent) == record


def test_no_other_user_reads_a_run(tmp_path):
    before = os.umask(0)
    try:
        record = Record.create(plan_of(node_plan()), tmp_path / "runs")
        logs = Logs(record.folder)
        logs.write("driver", "one")
        logs.write("2001:db8::1", "two")
        logs.close()
    finally:
        os.umask(before)
    assert (logs.folder / "driver.log").read_text() == "one\n"
    assert (logs.folder / "2001_db8__1.log").read_text() == "two\n"
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "runs", record.folder, logs.folder)} == {0o700}
    assert {path.stat().st_mode & 0o077 for path in record.folder.rglob("*") if path.is_file()} == {0}


def test_the_control_process_is_known_by_its_host_and_start_time(tmp_path):
    record = Record.create(plan_of(node_plan()), tmp_path)
    assert record.controller() == psutil.Process()
    control = record.control
    record.change(control=control.model_copy(update={"started": control.started - 60}))  # its id is another's now
    assert record.controller() is None
    record.change(control=control.model_copy(update={"host": "another-machine"}))
    assert record.controller() is None
    gone = subprocess.Popen(["true"])
    gone.wait()
    record.change(control=control.model_copy(update={"pid": gone.pid}))
    assert record.controller() is None


def test_stop_takes_the_one_run_that_has_not_ended(tmp_path, capsys):
    with pytest.raises(LaunchError, match="no run"):
        find(None, tmp_path)
    first, second = (Record.create(plan_of(node_plan()), tmp_path) for _ in range(2))
    with pytest.raises(LaunchError, match=f"{first.run}, {second.run}. Say which"):
        find(None, tmp_path)
    first.change(state="done")
    assert find(None, tmp_path)[0] == second
    for name in (first.run, str(first.folder), f"{os.path.relpath(first.folder)}/"):
        assert find(name, tmp_path)[0] == first
    assert run.stop("nosuch", tmp_path) == 2
    errors = capsys.readouterr().err
    assert "no run 'nosuch'" in errors and second.run in errors


def linked(folder: Path) -> None:
    (folder / "run.json").rename(folder.parent / "elsewhere")
    (folder / "run.json").symlink_to(folder.parent / "elsewhere")


SPOILT: dict[str, Callable[[Path], object]] = {
    "another's file": lambda folder: os.chown(folder / "run.json", 65534, -1),
    "another's folder": lambda folder: os.chown(folder, 65534, -1),
    "others may write": lambda folder: folder.chmod(0o770),
    "others may write above": lambda folder: folder.parent.chmod(0o1777),
    "a link": linked,
}


@pytest.mark.parametrize("spoilt", SPOILT)
@pytest.mark.parametrize("named", [True, False], ids=["named", "unnamed"])
def test_a_record_that_others_can_have_written_is_refused(tmp_path, capsys, monkeypatch, spoilt, named):
    if os.geteuid() and spoilt.startswith("another's"):
        pytest.skip("gives files away, which needs root")
    record = Record.create(plan_of(node_plan()), tmp_path / "runs")
    monkeypatch.setattr(run, "end_on", lambda *_: pytest.fail("a host was asked"))
    monkeypatch.setattr(Record, "controller", lambda _: pytest.fail("a process was looked for"))
    SPOILT[spoilt](record.folder)
    assert run.stop(record.run if named else None, tmp_path / "runs") == 2
    assert str(tmp_path / "runs") in capsys.readouterr().err


BROKEN: dict[str, Callable[[dict], str]] = {
    "no JSON": lambda _: "{{",
    "a list": lambda _: "[]",
    "a command": lambda tree: json.dumps(tree | {"run": "x; id"}),
    "above": lambda tree: json.dumps(tree | {"run": "../x"}),
    "pid": lambda tree: json.dumps(tree | {"control": tree["control"] | {"pid": -1}}),
    "no hosts": lambda tree: json.dumps(tree | {"inventory": tree["inventory"] | {"hosts": []}}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_a_broken_record_is_named_and_keeps_no_other_run_alive(tmp_path, capsys, monkeypatch, broken):
    bad, good = (Record.create(plan_of(node_plan()), tmp_path) for _ in range(2))
    file = bad.folder / "run.json"
    file.write_text(broken(json.loads(file.read_text())))
    with pytest.raises(LaunchError, match=str(file)):
        find(bad.run, tmp_path)
    asked = []
    monkeypatch.setattr(run, "end_on", lambda run, *_: asked.append(run) or (0, ""))
    monkeypatch.setattr(Record, "controller", lambda _: None)
    assert run.stop(None, tmp_path) == 0
    assert asked == [good.run]
    assert str(file) in capsys.readouterr().err


def test_stop_names_a_host_that_it_cannot_reach(tmp_path, capsys):
    record = Record.create(plan_of(node_plan()), tmp_path)
    away = Host(address="localhost", ssh=Ssh(port=1))
    inventory = record.inventory
    record.change(
        control=record.control.model_copy(update={"pid": 2**22 + 1}),  # no process has it
        inventory=inventory.model_copy(update={"hosts": [*inventory.hosts, away]}),
        local=[True, False],
    )
    assert run.stop(None, tmp_path) == 1
    said = capsys.readouterr().out
    assert "127.0.0.1: nothing left" in said and has_line_naming(said, "localhost:", "ssh: connect", "refused")
    assert find(None, tmp_path)[0].state == "running"
