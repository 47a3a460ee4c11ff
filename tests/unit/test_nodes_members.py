"""Who has joined, from what Ray's state API says of its nodes, and what the head makes of it."""

from types import SimpleNamespace

import pytest
from cluster_cases import node_plan

from launch.nodes import head as asked
from launch.nodes.head import Head, Members


def node(address: str, state: str = "ALIVE", message: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(node_ip=address, state=state, state_message=message)


def test_members_join_and_die():
    members = Members([["192.0.2.1"], ["192.0.2.2", "198.51.100.2"], ["192.0.2.3"]])
    assert members.look([node("192.0.2.1"), node("198.51.100.2")])
    assert (members.joined, members.lost) == ({0, 1}, {})
    assert not members.look([node("192.0.2.1"), node("198.51.100.2")])
    assert members.look([node("192.0.2.1"), node("198.51.100.2", "DEAD", "missed heartbeats"), node("192.0.2.3")])
    assert (members.joined, members.lost) == ({0, 2}, {1: "missed heartbeats"})
    members.look([node("198.51.100.2", "DEAD"), node("198.51.100.2")])  # it comes back, and stays lost
    assert not members.look([node("192.0.2.9")])  # nobody
    assert (members.joined, set(members.lost)) == ({0, 2}, {1})
    late = Members([["192.0.2.1"], ["192.0.2.2"]])
    late.look([node("192.0.2.2", "DEAD"), node("192.0.2.2")])  # dead before it joined: no loss
    assert (late.joined, late.lost) == ({1}, {})


def test_a_run_on_one_host_takes_whatever_address_ray_gave_it():
    members = Members([["127.0.0.1"]])
    assert members.look([node("192.0.2.2")]) and members.joined == {0}


@pytest.mark.parametrize(
    ("status", "over", "code"), [("SUCCEEDED", True, 0), ("FAILED", True, 1), ("RUNNING", False, None)]
)
def test_a_worker_that_leaves_after_the_job_is_no_loss(monkeypatch, status, over, code):
    """Workers of --on-this-node leave as soon as they know how the job has ended, perhaps before the head asks."""
    told = []
    known = Members([["192.0.2.1"], ["192.0.2.2"]], joined={0, 1})
    head = Head(node_plan(), known, None, "http://192.0.2.1:1", lambda event, **fields: told.append(event))
    head.job = SimpleNamespace(state=lambda: (status, over, ""))
    monkeypatch.setattr(asked, "nodes", lambda dashboard: [node("192.0.2.1"), node("192.0.2.2", "DEAD")])
    assert head.look() == code
    assert told == {"SUCCEEDED": ["job"], "FAILED": ["job"], "RUNNING": ["job", "members"]}[status]
