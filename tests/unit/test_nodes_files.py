"""What a node reads and leaves: the driver's log as it grows, Ray's logs, the meeting file; versions; variables."""

import os
import stat
import sys
from pathlib import Path

import pytest
from cluster_cases import node_plan
from naming import has_line_naming, line_naming

from launch import LaunchError
from launch.environment.network import Wire
from launch.nodes import run, worker
from launch.nodes.checks import Checked, skew
from launch.nodes.head import Tail
from launch.nodes.ray_node import variables
from launch.system.software import sources


def test_tail_gives_every_line_once_and_whole(tmp_path):
    file = tmp_path / "log"
    tail = Tail(file)
    assert tail.lines() == []
    with file.open("ab", buffering=0) as log:
        log.write(b"one\ntw")
        assert tail.lines() == ["one"]
        log.write(b"o\n10%\r20%\r")
        assert tail.lines() == ["two", "10%", "20%"]
        log.write("drei ä".encode()[:-1])
        assert tail.lines() == []
        log.write("ä".encode()[1:] + b"\n\nend")
        assert tail.lines() == ["drei ä"]
    assert tail.lines(last=True) == ["end"]
    assert tail.lines(last=True) == []


def test_session_logs_are_the_ends_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "LARGEST", 10)
    monkeypatch.setattr(run, "ALL", 25)
    folder = tmp_path / "session_latest" / "logs"
    (folder / "old").mkdir(parents=True)
    files = [("a.log", "0123456789abcdef"), ("old/b.log", "short"), ("c.log", "x" * 50), ("d.log", "too much")]
    for age, (name, text) in enumerate(files):
        (folder / name).write_text(text)
        os.utime(folder / name, (1000 - age, 1000 - age))
    (folder / "empty.log").touch()
    assert list(run.session_logs(tmp_path)) == [
        ("a.log", "6789abcdef"),
        ("old/b.log", "short"),
        ("c.log", "x" * 10),
    ]


def test_the_meeting_file_is_for_its_owner_alone(tmp_path):
    file = tmp_path / "out" / "meeting"
    worker.share(file, "first", {"ray": "1"})
    worker.share(file, "second", {"ray": "2"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert worker.take(file, {"ray": "2"}) == "second"
    with pytest.raises(LaunchError, match="ray 3, the head has 2"):
        worker.take(file, {"ray": "3"})
    with pytest.raises(LaunchError, match=line_naming(tmp_path / "absent")):
        worker.take(tmp_path / "absent", {})


def test_the_digest_tells_every_change_of_a_source(tmp_path):
    seen, packages = set(), [tmp_path / "launch", tmp_path / "site" / "ascend_quant"]
    changes = [("launch/a.py", "1"), ("launch/a.py", "2"), ("site/ascend_quant/b.py", "2"), ("launch/sub/c.py", "")]
    for name, text in changes:
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text(text)
        seen.add(sources(packages))
    (tmp_path / "launch" / "notes.txt").write_text("no source")
    assert len(seen) == 4 and sources(packages) in seen
    moved = (tmp_path / "site" / "ascend_quant").rename(tmp_path / "ascend_quant")
    assert sources([tmp_path / "launch", moved]) in seen  # an image has the package elsewhere
    (moved / "b.py").rename(moved / "d.py")
    assert sources([tmp_path / "launch", moved]) not in seen


def test_version_skew_names_both_sides():
    head = {"python": "3.11.2", "ray": "2.60.0", "verl": "0.9.1"}
    assert skew(head, dict(head)) == []
    other = {"python": "3.11.2", "ray": "2.59.0", "vllm": "1"}
    ray, verl, vllm = skew(head, other)
    assert (
        has_line_naming(ray, "ray 2.59.0", "2.60.0")
        and has_line_naming(verl, "verl missing", "0.9.1")
        and has_line_naming(vllm, "vllm 1", "none")
    )


def test_the_environment_is_the_hosts_own_wired_and_marked():
    shell = {"RAY_ADDRESS": "192.0.2.99:6379", "RAY_TMPDIR": "/elsewhere", "PATH": "/usr/bin", "HOME": "/home/me"}
    plan = node_plan(layers=[("inventory", {"GREETING": "hello", "RAY_ADDRESS": "192.0.2.98:1"})])
    found, notes = variables(
        plan, Checked(Wire("eth7", "192.0.2.11", "ipv4"), [0], [0]), "secret", shell | {"GREETING": "x"}
    )
    assert "RAY_ADDRESS" not in found and "RAY_TMPDIR" not in found
    assert found["HOME"] == "/home/me" and found["GREETING"] == "hello"
    assert found["GLOO_SOCKET_IFNAME"] == "eth7"
    assert (found["ASCEND_QUANT_RUN"], found["SPT_NOENV"]) == (plan.run, "1")
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN"]) == ("token", "secret")
    assert found["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert any(note.startswith("GREETING") for note in notes)
