"""Which fake quantization a run's configuration asks for, and the clear error when it does not go with the rest."""

import pytest
from naming import has_line_naming

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

import yaml
from omegaconf import OmegaConf

from ascend_quant.integrations.verl.qat import FakeQuantization, wanted
from ascend_quant.integrations.verl.settings import wants_proof
from ascend_quant.refit import RefitError

PLUGIN = {"quantization": "ascend_quant"}
IGNORE = ["re:.*self_attn.*"]


def config(asked=None, plugin=None, rollout=PLUGIN, strategy="fsdp2", model=None, **actor):
    """A run's configuration; `plugin` are the options of our vLLM plugin."""
    kwargs = {"ascend_quant": {"qat": asked}} if asked else {}
    if plugin:
        quantization = {"quant_method": "ascend_quant", **plugin}
        kwargs["vllm"] = {"hf_overrides": {"quantization_config": quantization}}
    parts = {
        "rollout": {"name": "vllm", "quantization": None, "engine_kwargs": kwargs, **rollout},
        "model": {"path": "org/model", "lora_rank": 0, **(model or {})},
        "actor": {"strategy": strategy, **actor},
    }
    return OmegaConf.create({"actor_rollout_ref": parts})


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("FLASHRL_CONFIG", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "OPEN_TRAINING_INT4_GROUP_SIZE"):
        monkeypatch.delenv(name, raising=False)


def test_none_is_asked_for():
    assert wanted(config()) is None and wanted(config(strategy="veomni")) is None


@pytest.mark.parametrize("strategy", ["fsdp", "fsdp2", "megatron"])
def test_the_option(strategy):
    run = config("int4_g32", {"scheme": "int4_g32", "ignore": IGNORE}, strategy=strategy)
    assert wanted(run) == FakeQuantization("int4_g32", tuple(IGNORE), "")
    assert wants_proof(run.actor_rollout_ref.rollout)


def test_the_rollouts_default_scheme():
    assert wanted(config("int8")) == FakeQuantization("int8", (), "")


def test_slimes_variables(monkeypatch):
    monkeypatch.setenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "1")
    assert wanted(config(plugin={"scheme": "int4_g128"})).scheme == "int4_g128"
    assert wanted(config("int4_g128", {"scheme": "int4_g128"})).scheme == "int4_g128"
    with pytest.raises(RefitError, match=r"qat=int8, but OPEN_TRAINING_INT4_FAKE_QAT_FLAG asks for int4_g128"):
        wanted(config("int8"))


@pytest.mark.parametrize("rollout", [{}, {**PLUGIN}])
def test_a_bf16_rollout_is_warned_of(rollout):
    found = wanted(config("int4_g32", {"scheme": "bf16"} if rollout else {}, rollout=rollout))
    assert found.scheme == "int4_g32"
    assert has_line_naming(found.warning, "int4_g32", "bf16")


@pytest.mark.parametrize(
    ("asked", "more", "words"),
    [
        ("int4_g32", {"plugin": {"scheme": "int4_g128"}}, r"\bint4_g32, .* int4_g128\b"),
        ("int4_g32", {}, r"\bint4_g32, .* int8\b"),
        ("int8", {"rollout": {"quantization": "fp8"}}, r"\bint8, .* fp8\b"),
        ("fp8", {}, r"qat=fp8: no fake quantization .* for: int4_g128, int4_g32, int8"),
        ("int8", {"strategy": "torchtitan"}, "needs actor.strategy=fsdp or fsdp2 or megatron, not torchtitan"),
        ("int8", {"model": {"lora_rank": 8}}, "with LoRA"),
        ("int8", {"model": {"lora": {"rank": 8}}}, "with LoRA"),
        ("int8", {"qat": {"enable": True}}, "verl's own qat"),
        ("int8", {"fsdp_config": {"qat": {"enable": True}}}, "verl's own qat"),
        ("int8", {"plugin": {"replicas": [{}, {"ignore": IGNORE}]}}, "ignore different layers"),
    ],
)
def test_what_does_not_go_together(asked, more, words):
    with pytest.raises(RefitError, match=words):
        wanted(config(asked, **more))


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([{"scheme": "int8"}, {"scheme": "bf16"}], ("int8", True)),
        ([{"scheme": "int8"}, {"scheme": "int8"}], ("int8", False)),
    ],
)
def test_replicas_of_several_schemes(replicas, expected):
    found = wanted(config("int8", {"replicas": replicas}))
    assert (found.scheme, bool(found.warning)) == expected


def test_replicas_that_flashrls_variable_names(tmp_path, monkeypatch):
    path = tmp_path / "flashrl.yaml"
    path.write_text(yaml.safe_dump({"configs": [{"fn": "int8", "ignore": IGNORE}, {"fn": "bf16"}]}))
    monkeypatch.setenv("FLASHRL_CONFIG", str(path))
    found = wanted(config("int8", rollout={}))
    assert found.ignore == tuple(IGNORE) and found.warning
    with pytest.raises(RefitError, match=r"\bint4_g32, .* int8\b"):
        wanted(config("int4_g32", rollout={}))
