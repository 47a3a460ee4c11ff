"""Attention that verl cannot train with is one clear error before anything starts."""

import pytest

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

from omegaconf import OmegaConf

from ascend_quant.integrations.verl.training import attention_settings
from ascend_quant.integrations.verl.training.attention_settings import (
    FLASH,
    LIBRARY,
    PACKED,
    ULYSSES,
    AttentionError,
    check,
)

OURS = {"external_lib": LIBRARY, "override_config": {"attn_implementation": PACKED}}


def config(model=None, actor=None, ref=None, critic=None, path="/no/model", device="cuda"):
    model = {"path": str(path), "trust_remote_code": False, **(OURS if model is None else model)}
    actor = {"strategy": "fsdp2", ULYSSES: 1, "fsdp_config": {ULYSSES: 1}, **(actor or {})}
    roles = {"model": model, "actor": actor, "ref": {ULYSSES: 1, **(ref or {})}}
    critic = {"strategy": "fsdp2", **(critic or {})}
    return OmegaConf.create({"actor_rollout_ref": roles, "critic": critic, "trainer": {"device": device}})


def named(attention: str) -> dict:
    return {"override_config": {"attn_implementation": attention}}


@pytest.fixture(autouse=True)
def packages(monkeypatch):
    """None of those that bring flash attention, unless a test says otherwise."""
    found = set()
    monkeypatch.setattr(attention_settings, "find_spec", lambda name: name if name in found else None)
    return found


@pytest.fixture
def save_model(tmp_path):
    def save(kind: str, **more):
        import transformers

        transformers.AutoConfig.for_model(kind, **more).save_pretrained(tmp_path)
        return tmp_path

    return save


@pytest.mark.parametrize("attention", ["sdpa", "eager", "flex_attention"])
@pytest.mark.parametrize(
    "roles", [{"actor": {ULYSSES: 2}}, {"actor": {"fsdp_config": {ULYSSES: 2}}}, {"ref": {ULYSSES: 2}}]
)
def test_heads_that_are_not_exchanged(attention: str, roles: dict):
    with pytest.raises(AttentionError, match=rf"{attention} with {ULYSSES}=2.*{LIBRARY}.*{PACKED}"):
        check(config(named(attention), **roles), critic=False)
    check(config(named(attention)), critic=False)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_npus_exchange_heads_with_verls_default_alone(attention: str):
    with pytest.raises(AttentionError, match=rf"{attention} with {ULYSSES}=2.*attn_implementation={FLASH}, ") as raised:
        check(config(named(attention), {ULYSSES: 2}, device="npu"), critic=False)
    assert PACKED not in str(raised.value)


def test_ours_exchanges_them():
    check(config(actor={ULYSSES: 8}, ref={ULYSSES: 8}), critic=False)


@pytest.mark.parametrize("model", [{}, named(FLASH), {"override_config": None}])
def test_verls_default_without_flash_attn(model: dict, packages: set):
    with pytest.raises(AttentionError, match=rf"{FLASH}.*flash-attn.*{LIBRARY}.*{PACKED}"):
        check(config(model), critic=False)
    for package in ("flash_attn", "torch_npu", "kernels"):
        packages.clear()
        packages.add(package)
        check(config(model, actor={ULYSSES: 2}), critic=False)


@pytest.mark.parametrize("attention", [PACKED, "flex_attention", "flash_attention_3", "kernels-community/flash-attn2"])
def test_an_attention_without_a_kernel_on_npus(attention: str, packages: set):
    packages.add("torch_npu")
    model = {**OURS, **named(attention)}
    with pytest.raises(AttentionError, match=rf"{attention} with trainer\.device=npu.*{LIBRARY}.*{FLASH}"):
        check(config(model, device="npu"), critic=False)
    check(config(model), critic=False)
    check(config(model, device="npu", actor={"strategy": "megatron"}), critic=False)
    for served in ({}, named("sdpa"), named("eager")):
        check(config(served, device="npu"), critic=False)


def test_our_name_without_our_library():
    with pytest.raises(AttentionError, match=f"external_lib={LIBRARY}"):
        check(config({**OURS, "external_lib": "mine"}), critic=False)
    check(config({**OURS, "external_lib": ["mine", LIBRARY]}), critic=False)


@pytest.mark.parametrize("strategy", ["megatron", "veomni"])
def test_other_engines_have_an_attention_of_their_own(strategy: str):
    check(config({}, actor={"strategy": strategy, ULYSSES: 2}), critic=False)


@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "glm4v"])
def test_models_that_call_flash_attn_by_name(kind: str, packages: set, save_model):
    path = save_model(kind)
    with pytest.raises(AttentionError, match=f"attention for {kind}.*flash-attn"):
        check(config(path=path), critic=False)
    packages.add("torch_npu")
    check(config(path=path), critic=False)


def test_fused_kernels_want_tied_embeddings(save_model):
    fused = {**OURS, "use_fused_kernels": True}
    untied = config(fused, path=save_model("qwen2", tie_word_embeddings=False))
    with pytest.raises(AttentionError, match=r"use_fused_kernels=True.*not tied.*use_fused_kernels=False"):
        check(untied, critic=False)
    untied.actor_rollout_ref.actor.strategy = "fsdp"
    check(untied, critic=False)
    check(config(OURS, path=save_model("qwen2", tie_word_embeddings=False)), critic=False)
    check(config(fused, path=save_model("qwen2", tie_word_embeddings=True)), critic=False)


def test_a_critic_needs_flash_attn(packages: set):
    with pytest.raises(AttentionError, match=r"critic\.strategy=fsdp2.*adv_estimator=grpo"):
        check(config(), critic=True)
    check(config(critic={"strategy": "megatron"}), critic=True)
    packages.add("flash_attn")
    check(config(), critic=True)
