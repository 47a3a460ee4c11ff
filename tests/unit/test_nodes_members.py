"""Who has joined and who was lost, from the nodes that Ray's state API lists."""

import time
from types import SimpleNamespace

from launch.nodes.head import Members, gather


def node(host: int, state: str = "ALIVE", message: str | None = None, name: str = "") -> dict[str, object]:
    own = {"labels": {"host": str(host), "ray.io/node-id": "1f"}, "node_id": name or f"first of {host}"}
    return {**own, "state": state, "state_message": message}


def test_members_join_and_die():
    members = Members()
    members.look([node(0), node(1)])
    assert (set(members.joined), members.lost) == ({0, 1}, {})
    members.look([node(0), node(1, "DEAD", "missed heartbeats"), node(2)])
    assert (set(members.joined), members.lost) == ({0, 2}, {1: "missed heartbeats"})
    members.look([node(1, "DEAD"), node(1, name="second")])  # it comes back, and stays lost
    assert (set(members.joined), set(members.lost)) == ({0, 2}, {1})
    late = Members()
    for _ in range(2):
        late.look([node(1, "DEAD"), node(1, name="second")])  # dead before it joined: no loss
        assert (set(late.joined), late.lost) == ({1}, {})


def test_a_member_that_dies_while_the_cluster_forms_may_join_again():
    dead = [node(0), node(1, "DEAD")]
    looks = iter([[node(0), node(1)], dead, [node(1, name="second"), *dead, node(2)]])
    launcher = SimpleNamespace(status=lambda **_: None, ended=SimpleNamespace(wait=lambda _: False))
    plan = SimpleNamespace(members=["a", "b", "c"])
    part = SimpleNamespace(plan=plan, launcher=launcher, check_ray=lambda: None, deadline=time.monotonic() + 60)
    assert gather(part, SimpleNamespace(listed=lambda _: next(looks)), Members())
