"""Who has joined and who was lost, from the nodes that Ray's state API lists."""

from launch.nodes.head import Members


def node(address: str, state: str = "ALIVE", message: str | None = None) -> dict[str, str | None]:
    return {"node_ip": address, "state": state, "state_message": message}


def test_members_join_and_die():
    members = Members([["192.0.2.1"], ["192.0.2.2", "198.51.100.2"], ["192.0.2.3"]])
    members.look([node("192.0.2.1"), node("198.51.100.2")])
    assert (members.joined, members.lost) == ({0, 1}, {})
    members.look([node("192.0.2.1"), node("198.51.100.2", "DEAD", "missed heartbeats"), node("192.0.2.3")])
    assert (members.joined, members.lost) == ({0, 2}, {1: "missed heartbeats"})
    members.look([node("198.51.100.2", "DEAD"), node("198.51.100.2")])  # it comes back, and stays lost
    members.look([node("192.0.2.9")])  # nobody
    assert (members.joined, set(members.lost)) == ({0, 2}, {1})
    late = Members([["192.0.2.1"], ["192.0.2.2"]])
    late.look([node("192.0.2.2", "DEAD"), node("192.0.2.2")])  # dead before it joined: no loss
    assert (late.joined, late.lost) == ({1}, {})


def test_a_run_on_one_host_takes_whatever_address_ray_gave_it():
    members = Members([["127.0.0.1"]])
    members.look([node("192.0.2.2")])
    assert members.joined == {0}
