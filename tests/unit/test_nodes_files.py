"""A host's part: Ray's logs; how hosts meet (token, versions, clocks); and the variables of its Ray."""

import os
import re
import stat
import sys
import time
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
import requests
from cluster_cases import node_plan
from naming import has_line_naming, line_naming
from ray._private.label_utils import parse_node_labels_string

from launch import LaunchError
from launch.environment.network import Wire
from launch.nodes import meeting, part
from launch.nodes.checks import Checked
from launch.nodes.ray_node import variables
from launch.system.software import sources


def test_session_logs_are_the_ends_of_the_files(tmp_path, monkeypatch):
    monkeypatch.setattr(part, "LARGEST", 10)
    folder = tmp_path / "session_latest" / "logs"
    (folder / "old").mkdir(parents=True)
    for name, text in (("a.log", "0123456789abcdef"), ("old/b.log", "short"), ("empty.log", "")):
        (folder / name).write_text(text)
    assert dict(part.session_logs(tmp_path)) == {"a.log": "6789abcdef", "old/b.log": "short"}
    assert list(part.session_logs(tmp_path / "absent")) == []


def test_the_file_of_the_token_is_for_its_owner_alone(tmp_path):
    plan = node_plan(out=str(tmp_path / "out"))
    with pytest.raises(LaunchError, match=line_naming(meeting.token_file(plan))):
        meeting.take(plan)
    for token in ("first", "second"):
        meeting.share(plan, token)
        assert meeting.take(plan) == token
    assert stat.S_IMODE(meeting.token_file(plan).stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("ahead", "way", "wrong"),
    [
        (4.9, 0.1, None),
        (-4.9, 0.1, None),
        (7.0, 0.1, "6 s ahead"),  # at least
        (-90.0, 0.1, "90 s behind"),
        (10.0, 6.0, None),  # the difference may be that of the way
        (13.0, 6.0, "6 s ahead"),
    ],
)
def test_the_date_of_an_answer_tells_the_heads_clock_to_a_second(ahead, way, wrong):
    theirs = 1_700_000_000.4  # the head answers then, and names the whole second
    date = formatdate(int(theirs), usegmt=True)
    found = meeting.clock_skew(theirs + ahead - way, theirs + ahead + way, date)
    assert (found is None) == (wrong is None) and (wrong is None or wrong in found)


def test_a_worker_says_how_it_differs_from_the_head(monkeypatch):
    """A head whose clock is two minutes behind, as its dashboard's answers say, and whose verl is another."""
    versions, cluster = {"ray": "2.60.0", "verl": "0.9.1"}, SimpleNamespace(address="http://head:8260", nodes=[])
    cluster.listed = lambda kind: {"nodes": cluster.nodes}[kind]
    with pytest.raises(LaunchError):  # to be tried again
        meeting.differences(cluster, versions)
    cluster.nodes = [{"is_head_node": head, "labels": {"host": "0", "ray": "2.60.0"}} for head in (False, True)]
    cluster.nodes[1]["labels"]["verl"] = "0.9.0"
    dates = {cluster.address: SimpleNamespace(headers={"Date": formatdate(time.time() - 120, usegmt=True)})}
    monkeypatch.setattr(requests, "head", lambda url, timeout: dates[url])
    clock, version = meeting.differences(cluster, versions)
    assert has_line_naming(version, "verl 0.9.1", "0.9.0") and "ray" not in version
    assert re.search(r" (119|120) s ahead", clock)


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
    head = meeting.labels({"these sources": "1f", "ray": "2.60.0", "verl": "0.9.1", "torch": "2.11.0+cu130"})
    assert list(parse_node_labels_string(",".join(f"{name}={value}" for name, value in head.items()))) == list(head)
    assert meeting.skew(head | {"ray.io/node-id": "a"}, dict(head)) == []
    other = head | {"ray": "2.59.0", "vllm": "1"}
    del other["verl"]
    ray, verl, vllm = meeting.skew(head, other)
    assert (
        has_line_naming(ray, "ray 2.59.0", "2.60.0")
        and has_line_naming(verl, "verl missing", "0.9.1")
        and has_line_naming(vllm, "vllm 1", "none")
    )


def test_the_environment_is_the_hosts_own_wired_and_marked():
    shell = {"RAY_ADDRESS": "192.0.2.99:6379", "RAY_TMPDIR": "/elsewhere", "PATH": "/usr/bin", "HOME": "/home/me"}
    plan = node_plan(layers=[("inventory", {"GREETING": "hello", "RAY_ADDRESS": "192.0.2.98:1"})])
    found, notes = variables(
        plan,
        Checked(Wire("eth7", "192.0.2.11", "ipv4"), [0], [0]),
        shell | {"GREETING": "x", "RAY_AUTH_TOKEN": "of another cluster"},
    )
    assert not {"RAY_ADDRESS", "RAY_TMPDIR", "RAY_AUTH_TOKEN"} & set(found)
    assert found["HOME"] == "/home/me" and found["GREETING"] == "hello"
    assert found["GLOO_SOCKET_IFNAME"] == "eth7"
    assert (found["ASCEND_QUANT_RUN"], found["SPT_NOENV"]) == (plan.run, "1")
    assert found["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
    assert any(note.startswith("GREETING") for note in notes)
