"""What a configuration asks for, and the one clear error when it cannot be had."""

import pytest

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

import torch
import yaml
from omegaconf import OmegaConf

from ascend_quant.flashrl.files import ConfigError
from ascend_quant.integrations.verl import settings
from ascend_quant.refit import RefitError


def config(model="org/model", **rollout):
    rollout = {"name": "vllm", "quantization": None, "engine_kwargs": {}, **rollout}
    actor = {"rollout": rollout, "model": {"path": str(model)}}
    return OmegaConf.create({"actor_rollout_ref": actor, "trainer": {"device": "cuda"}})


def sending(send, **options):
    """Rollout settings of an engine with these options, whose trainer sends codes."""
    return {
        "engine_kwargs": {"ascend_quant": {"send": send}, "vllm": {"hf_overrides": {"quantization_config": options}}}
    }


@pytest.mark.parametrize(("scheme", "codes"), [("int8", "int8"), ("fp8", "fp8"), ("fp8_block", None), ("bf16", None)])
def test_patches_are_of_codes_where_rows_have_scales_of_their_own(scheme, codes):
    rollout = OmegaConf.create(sending("delta", scheme=scheme))
    found = settings.sent_as(rollout)
    assert (found and found.name) == codes
    assert settings.patches_of(rollout) == (torch.device("cpu"), True)
    for where, wanted in (
        ("auto", (torch.device("cpu"), True)),
        ("host", (torch.device("cpu"), False)),
        ("device", (None, False)),
    ):
        rollout.engine_kwargs.ascend_quant.base_on = where
        assert settings.patches_of(rollout) == wanted
    assert settings.patches_of(OmegaConf.create(sending("int8"))) is None
    settings.check(config(**rollout, checkpoint_engine={"backend": "nccl"}))


@pytest.mark.parametrize(
    ("ours", "of_vllm", "device", "share"),
    [
        ({}, {}, "cuda", 0.4),
        ({"memory": "auto"}, {"gpu_memory_utilization": 0.6}, "npu", 0.6),
        ({"memory": "release"}, {}, "cuda", None),
        ({}, {"kv_cache_memory_bytes": 1 << 30}, "cuda", None),
        ({}, {}, "cpu", None),
    ],
)
def test_what_an_engine_takes_at_most_beside_a_trainer_that_keeps_its_cache(ours, of_vllm, device, share):
    engine = {"ascend_quant": ours, "vllm": of_vllm}
    rollout = OmegaConf.create({"gpu_memory_utilization": 0.4, "engine_kwargs": engine})
    assert settings.share_of_engine(rollout, device) == share


@pytest.mark.parametrize("send", ["int8", "fp8", "bf16"])
def test_codes_of_the_engines_scheme_may_be_sent(send):
    rollout = sending(send, scheme="fp8" if send == "fp8" else "int8")
    settings.check(config(**rollout))
    scheme = settings.sent_as(OmegaConf.create(rollout))
    assert (scheme and scheme.name) == (None if send == "bf16" else send)


@pytest.mark.parametrize(
    "rollout",
    [
        {"quantization": "ascend_quant"},
        {"engine_kwargs": {"vllm": {"quantization": "ascend_quant"}}},
        {"engine_kwargs": {"vllm": {"hf_overrides": {"quantization_config": {"quant_method": "ascend_quant"}}}}},
    ],
)
def test_wants_refits(rollout):
    assert settings.wants_refits(config(**rollout))


@pytest.mark.parametrize("rollout", [{}, {"quantization": "fp8"}, {"engine_kwargs": {"vllm": {"seed": 1}}}])
def test_leaves_other_runs_to_verl(rollout, monkeypatch):
    monkeypatch.delenv("FLASHRL_CONFIG", raising=False)
    assert not settings.wants_refits(config(**rollout))


@pytest.mark.parametrize("functions", [["int8"], ["int8", "bf16"], ["fp8"], ["int8", "fp8_channel"]])
def test_flashrls_variable_wants_refits(functions, tmp_path, monkeypatch):
    path = tmp_path / "flashrl.yaml"
    path.write_text(yaml.safe_dump({"configs": [{"fn": function} for function in functions]}))
    monkeypatch.setenv("FLASHRL_CONFIG", str(path))
    assert settings.wants_refits(config())


def test_flashrls_variable_with_a_value_that_is_not_valid(monkeypatch):
    monkeypatch.setenv("FLASHRL_CONFIG", "int9")
    with pytest.raises(ConfigError, match=r"FLASHRL_CONFIG='int9'.*Valid are: int8"):
        settings.wants_refits(config())


def test_a_run_that_can_have_refits_passes(tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    (tmp_path / "config.json").touch()
    settings.check(config())
    settings.check(config(model=tmp_path))


UNPROVED = {"ascend_quant": {"proof": False}}
FP8_CACHE = {"vllm": {"kv_cache_dtype": "fp8"}}


@pytest.mark.parametrize("backend", ["naive", "nccl", "nixl", "a_user's", None])
def test_weights_pass_through_engines_that_carry_bytes(backend, monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    settings.check(config(checkpoint_engine={"backend": backend}))
    settings.check(config(checkpoint_engine={"backend": "mooncake"}, engine_kwargs=UNPROVED))


@pytest.mark.parametrize(
    ("rollout", "words"),
    [
        ({"name": "sglang"}, "needs rollout.name=vllm"),
        ({"disaggregation": {"enabled": True}}, "disaggregation is not supported"),
        ({"checkpoint_engine": {"backend": "delta_sharded"}}, "backend=delta_sharded patches BF16"),
        ({"checkpoint_engine": {"backend": "mooncake"}}, "backend=mooncake"),
        (
            {"checkpoint_engine": {"backend": "kimi_ckpt_engine"}, "engine_kwargs": {**UNPROVED, **FP8_CACHE}},
            "backend=kimi_ckpt_engine",
        ),
        ({"quantization": "fp8"}, "rollout.quantization=fp8, .* ascend_quant"),
        ({"engine_kwargs": {"vllm": {"quantization": "fp8"}}}, "rollout.engine_kwargs.vllm.quantization=fp8"),
        ({"engine_kwargs": {"ascend_quant": {"prove": True}}}, "unknown option .*ascend_quant.prove; .* are: proof"),
        ({"engine_kwargs": {"ascend_quant": {"proof": "maybe"}}}, "proof='maybe' is neither"),
        ({"engine_kwargs": {"ascend_quant": {"send": "int4_g32"}}}, "send='int4_g32'.* bf16, int8, fp8, delta"),
        ({"engine_kwargs": {"ascend_quant": {"send": "fp8"}}}, "send=fp8.* int8"),
        (sending("int8", scheme="bf16"), "send=int8.* bf16"),
        (sending("delta"), "send=delta.*=naive"),
        (sending("delta") | {"checkpoint_engine": {"backend": "naive"}}, "send=delta.*=naive"),
        ({"engine_kwargs": {"ascend_quant": {"base_on": "disk"}}}, "base_on='disk'"),
        ({"engine_kwargs": {"ascend_quant": {"memory": "keep"}}}, "memory='keep'"),
        (sending("int8", profile="p"), "send=int8.* profile"),
    ],
)
def test_unsupported_rollouts(rollout, words):
    with pytest.raises(RefitError, match=words):
        settings.check(config(**rollout))


@pytest.mark.parametrize(
    ("engine_kwargs", "wanted"),
    [({}, True), (None, True), ({"ascend_quant": {}}, True), ({"ascend_quant": {"proof": False}}, False)],
)
def test_the_proof_is_on_unless_switched_off(engine_kwargs, wanted):
    rollout = config(engine_kwargs=engine_kwargs).actor_rollout_ref.rollout
    assert settings.wants_proof(rollout) is wanted


def test_plugin_left_out(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(RefitError, match="leaves out ascend_quant"):
        settings.check(config())


def test_plugin_not_installed(monkeypatch):
    monkeypatch.setattr(settings, "entry_points", lambda group: [])
    with pytest.raises(RefitError, match="pip"):
        settings.check(config())


def test_model_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    with pytest.raises(RefitError, match=r"no config\.json"):
        settings.check(config(model=tmp_path))


ASKED = {"hf_overrides": {"quantization_config": {"kv_cache": "int8"}}}


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
@pytest.mark.parametrize(("engine", "device"), [({"kv_cache_dtype": "fp8"}, "cuda"), (ASKED, "npu")])
def test_a_kv_cache_with_scales_wants_a_trainer_whose_attention_is_looked_at(engine, device, strategy, monkeypatch):
    monkeypatch.delenv("VLLM_PLUGINS", raising=False)
    cached = config(engine_kwargs={"vllm": engine})
    cached.trainer.device = device
    cached.actor_rollout_ref.actor = {"strategy": strategy}
    if strategy == "megatron":
        with pytest.raises(RefitError, match=strategy):
            settings.check(cached)
    else:
        settings.check(cached)
