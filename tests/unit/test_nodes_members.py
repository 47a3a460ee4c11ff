"""Who has joined and who was lost, from the nodes that Ray's state API lists."""

from launch.nodes.head import Members


def node(host: int, state: str = "ALIVE", message: str | None = None) -> dict[str, object]:
    return {"labels": {"host": str(host), "ray.io/node-id": "1f"}, "state": state, "state_message": message}


def test_members_join_and_die():
    members = Members()
    members.look([node(0), node(1)])
    assert (members.joined, members.lost) == ({0, 1}, {})
    members.look([node(0), node(1, "DEAD", "missed heartbeats"), node(2)])
    assert (members.joined, members.lost) == ({0, 2}, {1: "missed heartbeats"})
    members.look([node(1, "DEAD"), node(1)])  # it comes back, and stays lost
    assert (members.joined, set(members.lost)) == ({0, 2}, {1})
    late = Members()
    late.look([node(1, "DEAD"), node(1)])  # dead before it joined: no loss
    assert (late.joined, late.lost) == ({1}, {})
