"""verl's load balancer, made early: who gets it, and that it balances as verl's own does."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

import verl.workers.rollout.router as router

from ascend_quant.integrations.verl import hooks
from ascend_quant.integrations.verl.early_actors import EarlyLoadBalancer
from ascend_quant.integrations.wrapping import install

SERVERS = {"10.0.0.1:8000": "one", "10.0.0.2:8000": "two"}
PLAIN = {"router_config_path": None, "load_balancer_cls": None}  # as verl passes them


@pytest.fixture
def own(monkeypatch):
    """Calls of verl's own function."""
    calls = []
    monkeypatch.setattr(router, "get_router_handle", lambda servers, **named: calls.append(named) or "verl's own")
    monkeypatch.setattr(hooks, "EARLY", [])
    install(hooks.WITH_EARLY_ACTORS)
    return calls


def test_the_first_who_asks_for_verls_kind_gets_the_early_one(own):
    made = ["early"]
    hooks.EARLY.append(lambda servers, full: made.pop() if made and servers == SERVERS and full else None)
    assert router.get_router_handle(servers=SERVERS, full_determinism=True, **PLAIN) == "early"
    assert own == []
    assert router.get_router_handle(servers=SERVERS, full_determinism=True, **PLAIN) == "verl's own"
    assert own == [{"full_determinism": True, **PLAIN}]


@pytest.mark.parametrize("asked", [{"router_config_path": "mine.yaml"}, {"load_balancer_cls": dict}])
def test_a_load_balancer_of_the_users_own_is_left_to_verl(own, asked):
    hooks.EARLY.append(lambda *_: "early")
    assert router.get_router_handle(servers=SERVERS, full_determinism=False, **PLAIN | asked) == "verl's own"
    assert own == [{"full_determinism": False, **PLAIN, **asked}]


@pytest.mark.parametrize("full_determinism", [False, True])
def test_it_balances_as_verls_own(full_determinism):
    early, usual = EarlyLoadBalancer(), router.GlobalRequestLoadBalancer(SERVERS, full_determinism=full_determinism)
    early.begin(SERVERS, full_determinism=full_determinism)
    for request in ("a", "b"):  # the second goes where the first did not; which that is, is verl's draw
        first, second = (balancer.acquire_server(request) for balancer in (early, usual))
        assert first[1] == SERVERS[first[0]] and second[1] == SERVERS[second[0]]
        assert not full_determinism or first == second
    assert early.get_status()["total_inflight"] == usual.get_status()["total_inflight"] == 2
    assert full_determinism or early.get_status()["servers"] == usual.get_status()["servers"] == dict.fromkeys(
        SERVERS, 1
    )
