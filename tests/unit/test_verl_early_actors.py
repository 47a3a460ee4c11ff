"""verl's load balancer, made early: who gets it, and that it balances as verl's own does."""

import pytest

pytest.importorskip("verl", reason="the verl adapter needs verl")

import verl.workers.rollout.router as router

from ascend_quant.integrations.verl import hooks
from ascend_quant.integrations.verl.compat import type_for_turns
from ascend_quant.integrations.verl.early_actors import EarlyLoadBalancer
from ascend_quant.integrations.wrapping import install
from benchmarks.train_files import save_tokenizer

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


def test_the_first_who_asks_for_verls_kind_gets_the_early_one_and_a_users_own_is_left_to_verl(own):
    made = ["early"]
    hooks.EARLY.append(lambda servers, full: made.pop() if made and servers == SERVERS and full else None)
    for asked in ({"router_config_path": "mine.yaml"}, {"load_balancer_cls": dict}):
        assert router.get_router_handle(servers=SERVERS, full_determinism=True, **PLAIN | asked) == "verl's own"
    for handle in ("early", "verl's own"):
        assert router.get_router_handle(servers=SERVERS, full_determinism=True, **PLAIN) == handle
    assert len(own) == 3 and own[-1] == {"full_determinism": True, **PLAIN}


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


@pytest.mark.parametrize(
    ("model_type", "tokens", "taken"),
    [
        ("deepseek_v3", [], None),  # Moonlight: with Kimi's tokens
        ("deepseek_v3", ["<｜end▁of▁sentence｜>"], "deepseek_v3"),
        ("qwen3_moe", [], "qwen3_moe"),
    ],
)
def test_a_chat_whose_tokens_are_not_there_is_joined_in_the_general_way(model_type, tokens, taken, tmp_path):
    from transformers import AutoTokenizer
    from verl.utils.tokenizer.continuous_token_wiring import create_continuous_token_builder

    save_tokenizer(512, tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    if tokens:
        tokenizer.add_special_tokens({"additional_special_tokens": tokens})
    assert type_for_turns(model_type, tokenizer) == taken
    create_continuous_token_builder(tokenizer, hf_model_type=type_for_turns(model_type, tokenizer))
