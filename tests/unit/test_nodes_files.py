"""What a node reads and leaves: the driver's log as it grows, Ray's logs, the meeting file; versions; variables."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cluster_cases import PROJECT, node_plan
from naming import has_line_naming, line_naming

import ascend_quant
import launch
from launch.errors import LaunchError
from launch.network import Wire
from launch.nodes import rendezvous, run
from launch.nodes.checks import Checked
from launch.nodes.facts import skew, versions
from launch.nodes.head import Tail
from launch.nodes.ray_node import variables
from launch.software import own_packages, sources


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
    assert list(run.session_logs(tmp_path / "nowhere")) == []


def test_the_meeting_file_is_for_its_owner_alone(tmp_path):
    file = tmp_path / "out" / "meeting"
    rendezvous.share(file, "first", {"ray": "1"})
    rendezvous.share(file, "second", {"ray": "2"})
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert rendezvous.take(file, {"ray": "2"}) == "second"
    with pytest.raises(LaunchError, match="ray 3, the head has 2"):
        rendezvous.take(file, {"ray": "3"})
    with pytest.raises(LaunchError, match=line_naming(tmp_path / "absent")):
        rendezvous.take(tmp_path / "absent", {})


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


def test_our_sources_are_those_that_are_imported():
    assert own_packages() == [Path(launch.__file__).parent, Path(ascend_quant.__file__).parent]


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


def test_versions_are_those_of_the_installed_packages():
    ray = pytest.importorskip("ray")
    found = versions()
    assert found["ray"] == ray.__version__ and found["python"] == ".".join(map(str, sys.version_info[:3]))
    assert "these sources" in found and "vllm_ascend" not in found


def test_the_environment_is_the_hosts_own_wired_and_marked():
    shell = {"RAY_ADDRESS": "192.0.2.99:6379", "RAY_TMPDIR": "/elsewhere", "PATH": "/usr/bin", "HOME": "/home/me"}
    late = {"HCCL_EXEC_TIMEOUT": "9", "HCCL_EVENT_TIMEOUT": "8"}
    plan = node_plan(layers=[("inventory", {"GREETING": "hello", "RAY_ADDRESS": "192.0.2.98:1", **late})])
    found, notes = variables(
        plan, Checked(Wire("eth7", "192.0.2.11", "ipv4"), [0]), "secret", shell | {"GREETING": "x"}
    )
    assert "RAY_ADDRESS" not in found and "RAY_TMPDIR" not in found
    assert found["HOME"] == "/home/me" and found["GREETING"] == "hello"
    assert found["GLOO_SOCKET_IFNAME"] == "eth7"
    assert (found["ASCEND_QUANT_RUN"], found["SPT_NOENV"]) == (plan.run, "1")
    assert (found["RAY_AUTH_MODE"], found["RAY_AUTH_TOKEN"]) == ("token", "secret")
    assert found["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    for start in ("GREETING", "HCCL_EXEC_TIMEOUT=9 (inventory)"):
        assert any(note.startswith(start) for note in notes)


LIMITS = """
import resource
from launch.nodes import run
run.OPEN_FILES = 1000  # what every host allows
resource.setrlimit(resource.RLIMIT_NOFILE, (256, {hard}))
print(run.open_files(), resource.getrlimit(resource.RLIMIT_NOFILE)[0])
"""


@pytest.mark.parametrize(("hard", "now", "told"), [(2000, 1000, False), (700, 700, True)])
def test_the_limit_of_open_files_is_raised_as_far_as_the_host_allows(hard, now, told):
    code = LIMITS.format(hard=hard)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    notes, _, limit = done.stdout.strip().rpartition(" ")
    assert int(limit) == now
    assert ("this host allows 700" in notes) == told and (notes == "[]") == (not told)
