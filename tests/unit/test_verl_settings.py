"""What a configuration asks for, which codes its engines agree on, and the clear error when it cannot be had."""

import pytest

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

import torch
import yaml
from omegaconf import OmegaConf

from ascend_quant.flashrl.files import ConfigError
from ascend_quant.integrations.verl import settings
from ascend_quant.integrations.verl.metrics.sync_reports import agreed
from ascend_quant.integrations.verl.training.qat import FakeQuantization, wanted
from ascend_quant.refit import RefitError
from ascend_quant.schemes import SCHEMES

IGNORE = ["re:.*self_attn.*"]
UNPROVED = {"ascend_quant": {"proof": False}}
FP8_CACHE = {"vllm": {"kv_cache_dtype": "fp8"}}
VARIABLES = ("FLASHRL_CONFIG", "VLLM_PLUGINS", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "OPEN_TRAINING_INT4_GROUP_SIZE")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


def config(model="org/model", strategy="fsdp2", actor=None, more=None, device="cuda", **rollout):
    rollout = {"name": "vllm", "quantization": None, "engine_kwargs": {}, **rollout}
    model = {"path": str(model), "lora_rank": 0, **(more or {})}
    parts = {"rollout": rollout, "model": model, "actor": {"strategy": strategy, **(actor or {})}}
    return OmegaConf.create({"actor_rollout_ref": parts, "trainer": {"device": device}})


def of_plugin(options: dict, **ours) -> dict:
    """Rollout settings of an engine with these options of our plugin, whose trainer has ours."""
    return {"engine_kwargs": {"ascend_quant": ours, "vllm": {"hf_overrides": {"quantization_config": options}}}}


def sending(send, **options):
    """Rollout settings of an engine with these options, whose trainer sends codes."""
    return of_plugin(options, send=send)


def flashrl(tmp_path, monkeypatch, *configs: dict) -> None:
    path = tmp_path / "flashrl.yaml"
    path.write_text(yaml.safe_dump({"configs": list(configs)}))
    monkeypatch.setenv("FLASHRL_CONFIG", str(path))


def test_codes_are_of_what_every_worker_takes_or_has_no_place_for():
    first, second = ("int8", ["q", "experts.0"], ["norm"]), ("int8", ["q", "experts.1"], ["norm"])
    assert agreed(SCHEMES["int8"], [first, second]) == {"q", "experts.0", "experts.1"}
    assert agreed(SCHEMES["int8"], [("int8", ["q", "k"], []), ("int8", ["q"], ["k"])]) == {"q"}
    for workers, named in (
        ([("int8", ["q"], []), ("bf16", [], ["q"])], "bf16"),
        ([("fp8", ["q"], [])], "fp8"),
        ([("int8", [], ["q"])], "send"),
        ([], "send"),
    ):
        with pytest.raises(RefitError, match=named):
            agreed(SCHEMES["int8"], workers)


@pytest.mark.parametrize(("scheme", "codes"), [("int8", "int8"), ("fp8", "fp8"), ("fp8_block", None), ("bf16", None)])
def test_patches_are_of_codes_where_rows_have_scales_of_their_own(scheme, codes):
    rollout = OmegaConf.create(sending("delta", scheme=scheme))
    found = settings.sent_as(rollout)
    assert (found and found.name) == codes
    assert settings.patches_of(rollout) == (torch.device("cpu"), True)
    for where, found in (
        ("auto", (torch.device("cpu"), True)),
        ("host", (torch.device("cpu"), False)),
        ("device", (None, False)),
    ):
        rollout.engine_kwargs.ascend_quant.base_on = where
        assert settings.patches_of(rollout) == found
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
    ("rollout", "wants"),
    [
        ({"quantization": "ascend_quant"}, True),
        ({"engine_kwargs": {"vllm": {"quantization": "ascend_quant"}}}, True),
        (of_plugin({"quant_method": "ascend_quant"}), True),
        ({}, False),
        ({"quantization": "fp8"}, False),
    ],
)
def test_which_runs_want_refits(rollout, wants):
    assert settings.wants_refits(config(**rollout)) is wants


def test_flashrls_variable_wants_refits(tmp_path, monkeypatch):
    flashrl(tmp_path, monkeypatch, {"fn": "int8"}, {"fn": "bf16"})
    assert settings.wants_refits(config())
    monkeypatch.setenv("FLASHRL_CONFIG", "int9")
    with pytest.raises(ConfigError, match=r"FLASHRL_CONFIG='int9'.*int8"):
        settings.wants_refits(config())


def test_a_run_that_can_have_refits_passes_and_what_it_lacks_is_named(tmp_path, monkeypatch):
    with pytest.raises(RefitError, match=r"config\.json"):
        settings.check(config(model=tmp_path))
    (tmp_path / "config.json").touch()
    settings.check(config(model=tmp_path))
    for backend in ("naive", "nccl", "a_user's", None):  # those that carry bytes
        settings.check(config(checkpoint_engine={"backend": backend}))
    settings.check(config(checkpoint_engine={"backend": "mooncake"}, engine_kwargs=UNPROVED))
    for kwargs, proof in (({}, True), (None, True), ({"ascend_quant": {}}, True), (UNPROVED, False)):
        assert settings.wants_proof(config(engine_kwargs=kwargs).actor_rollout_ref.rollout) is proof
    monkeypatch.setenv("VLLM_PLUGINS", "other")
    with pytest.raises(RefitError, match="VLLM_PLUGINS"):
        settings.check(config())
    monkeypatch.setattr(settings, "entry_points", lambda group: [])
    with pytest.raises(RefitError, match="pip"):
        settings.check(config())


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
        ({"engine_kwargs": {"ascend_quant": {"proof": "maybe"}}}, "proof='maybe'"),
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


@pytest.mark.parametrize("strategy", ["fsdp2", "megatron"])
def test_a_kv_cache_with_scales_wants_a_trainer_whose_attention_is_looked_at(strategy):
    for rollout, device in (({"engine_kwargs": FP8_CACHE}, "cuda"), (of_plugin({"kv_cache": "int8"}), "npu")):
        asked = config(strategy=strategy, device=device, **rollout)
        if strategy == "megatron":
            with pytest.raises(RefitError, match=strategy):
                settings.check(asked)
        else:
            settings.check(asked)


def fake(scheme=None, plugin=None, quantization="ascend_quant", **more):
    """A run with fake quantization; `plugin` are the options of our vLLM plugin."""
    rollout = of_plugin(
        {"quant_method": "ascend_quant", **plugin} if plugin else {}, **({"qat": scheme} if scheme else {})
    )
    return config(quantization=quantization, **rollout, **more)


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
def test_fake_quantization_is_asked_for_by_the_option_or_by_slimes_variables(strategy, monkeypatch):
    run = fake("int4_g32", {"scheme": "int4_g32", "ignore": IGNORE}, strategy=strategy)
    assert wanted(run) == FakeQuantization("int4_g32", tuple(IGNORE), "")
    assert wanted(fake("int4_g32", {"scheme": "int4_g32"}, strategy=strategy)) == FakeQuantization("int4_g32", (), "")
    assert wanted(fake()) is None and wanted(fake(strategy="veomni")) is None
    monkeypatch.setenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "1")
    for asked in (None, "int4_g128"):
        assert wanted(fake(asked, {"scheme": "int4_g128"}, strategy=strategy)).scheme == "int4_g128"
    with pytest.raises(RefitError, match=r"qat=int4_g32.*OPEN_TRAINING_INT4_FAKE_QAT_FLAG.*int4_g128"):
        wanted(fake("int4_g32", strategy=strategy))


def test_fake_quantization_for_engines_that_are_not_quantized_is_warned_of(tmp_path, monkeypatch):
    for run in (fake("int4_g32", {"scheme": "bf16"}), fake("int4_g32", quantization=None)):
        assert wanted(run).scheme == "int4_g32" and "bf16" in wanted(run).warning
    for second, warned in (("bf16", True), ("int4_g32", False)):
        found = wanted(fake("int4_g32", {"replicas": [{"scheme": "int4_g32"}, {"scheme": second}]}))
        assert (found.scheme, bool(found.warning)) == ("int4_g32", warned)
    flashrl(tmp_path, monkeypatch, {"fn": "bf16", "ignore": IGNORE})
    found = wanted(fake("int4_g32", quantization=None))
    assert found.ignore == () and "bf16" in found.warning
    flashrl(tmp_path, monkeypatch, {"fn": "bf16"}, {"fn": "int8"})
    with pytest.raises(RefitError, match=r"\bint4_g32, .* int8\b"):
        wanted(fake("int4_g32", quantization=None))


@pytest.mark.parametrize(
    ("scheme", "more", "words"),
    [
        ("int4_g32", {"plugin": {"scheme": "int4_g128"}}, r"\bint4_g32, .* int4_g128\b"),
        ("int4_g32", {}, r"\bint4_g32, .* int8\b"),
        ("int4_g32", {"quantization": "fp8"}, r"\bint4_g32, .* fp8\b"),
        ("int8", {}, "qat=int8: .* int4_g128, int4_g32, int8_exact.*rollout_correction.rollout_is=token"),
        ("int4_g32", {"strategy": "torchtitan"}, "fsdp or fsdp2 or megatron.*torchtitan"),
        ("int4_g32", {"more": {"lora_rank": 8}}, "LoRA"),
        ("int4_g32", {"more": {"lora": {"rank": 8}}}, "LoRA"),
        ("int4_g32", {"actor": {"qat": {"enable": True}}}, "qat"),
        ("int4_g32", {"actor": {"fsdp_config": {"qat": {"enable": True}}}}, "qat"),
        ("int4_g32", {"plugin": {"scheme": "int4_g32", "replicas": [{}, {"ignore": IGNORE}]}}, "ignore"),
    ],
)
def test_fake_quantization_that_does_not_go_with_the_rest(scheme, more, words):
    with pytest.raises(RefitError, match=words):
        wanted(fake(scheme, **more))
