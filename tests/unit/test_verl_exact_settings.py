"""A run whose actor computes the engine's policy bit for bit: what it asks for, and each setting that breaks it."""

import pytest

pytest.importorskip("omegaconf", reason="the verl adapter needs verl")

from naming import line_naming
from omegaconf import OmegaConf

from ascend_quant.exact.apply import RANKS
from ascend_quant.integrations.verl import EXACT_RANKS
from ascend_quant.integrations.verl.training.exact.settings import is_strict
from ascend_quant.integrations.verl.training.qat import FakeQuantization, wanted
from ascend_quant.refit import RefitError

EXACT = {"quant_method": "ascend_quant", "scheme": "int8", "exact": True}
ROLLOUT = {"name": "vllm", "calculate_log_probs": True, "top_k": -1, "top_p": 1, "tensor_model_parallel_size": 1}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in ("FLASHRL_CONFIG", "OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "OPEN_TRAINING_INT4_GROUP_SIZE"):
        monkeypatch.delenv(name, raising=False)


def config(options=EXACT, **changes):
    """With settings below actor_rollout_ref, or of the whole, by their names."""
    engine = {"ascend_quant": {"qat": "int8_exact"}, "vllm": {"hf_overrides": {"quantization_config": options}}}
    parts = {
        "rollout": {**ROLLOUT, "engine_kwargs": engine},
        "model": {"path": "org/model", "lora_rank": 0, "use_fused_kernels": False},
        "actor": {"strategy": "fsdp2"},
    }
    made = OmegaConf.create({"actor_rollout_ref": parts, "trainer": {"device": "cuda", "v1": {"trainer_mode": "sync"}}})
    for name, value in changes.items():
        OmegaConf.update(made, name if name.startswith("trainer") else f"actor_rollout_ref.{name}", value)
    return made


@pytest.mark.parametrize("ranks", RANKS)
def test_an_exact_actor_computes_as_the_engines_ranks(ranks):
    assert EXACT_RANKS == RANKS, "what the launcher reads, without torch"
    found = wanted(config(**{"rollout.tensor_model_parallel_size": ranks}))
    assert found == FakeQuantization("int8", ranks=ranks)


@pytest.mark.parametrize(
    "name, value",
    [
        ("actor.strategy", "fsdp"),
        ("actor.strategy", "megatron"),
        ("model.use_fused_kernels", True),
        ("rollout.calculate_log_probs", False),
        ("rollout.logprobs_mode", "raw_logprobs"),
        ("rollout.pipeline_model_parallel_size", 2),
        ("rollout.expert_parallel_size", 2),
        ("rollout.tensor_model_parallel_size", 4),
        ("rollout.top_k", 50),
        ("rollout.top_p", 0.9),
        ("rollout.repetition_penalty", 1.1),
        ("trainer.v1.trainer_mode", "colocate_async"),
        ("model.lora_rank", 8),
    ],
)
def test_a_setting_that_makes_another_policy_is_named(name, value):
    named = ("LoRA",) if name == "model.lora_rank" else (f"{name}={value}",)
    with pytest.raises(RefitError, match=line_naming("qat=int8_exact", *named)):
        wanted(config(**{name: value}))


@pytest.mark.parametrize(
    "options, named",
    [
        ({**EXACT, "exact": False}, "exact=true"),
        ({"quant_method": "ascend_quant", "scheme": "fp8"}, "scheme=int8"),
        ({}, "rollout.quantization=ascend_quant"),
        ({**EXACT, "replicas": [{}, {"exact": False}]}, "exact=true"),
    ],
    ids=["not exact", "fp8", "not ours", "one replica is not"],
)
def test_an_engine_of_another_policy_is_named(options, named):
    with pytest.raises(RefitError, match=line_naming("qat=int8_exact", named)):
        wanted(config(options))


def test_flashrls_variable_asks_for_no_exact_engine(monkeypatch):
    monkeypatch.setenv("FLASHRL_CONFIG", "int8")
    with pytest.raises(RefitError, match=line_naming("qat=int8_exact", "FLASHRL_CONFIG")):
        wanted(config())


@pytest.mark.parametrize("given, strict", [({}, False), ({"strict": True}, True), ({"strict": False}, False)])
def test_strict_is_a_setting_of_exact_runs(given, strict):
    asked = config(**{f"rollout.engine_kwargs.ascend_quant.{name}": value for name, value in given.items()})
    assert wanted(asked) is not None and is_strict(asked.actor_rollout_ref.rollout) is strict


@pytest.mark.parametrize(
    "qat, value, named", [("int8_exact", "yes", "strict='yes'"), ("int4_g32", True, "strict=true")]
)
def test_strict_is_refused(qat, value, named):
    options = "rollout.engine_kwargs.ascend_quant"
    with pytest.raises(RefitError, match=line_naming(named)):
        wanted(config(**{f"{options}.qat": qat, f"{options}.strict": value}))
