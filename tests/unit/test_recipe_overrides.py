"""Values survive hydra's command line, and every field of a recipe reaches the setting that it is for."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_recipe_files import load, write

from ascend_quant.integrations.verl.training.attention_settings import LIBRARY, PACKED
from launch.recipes import Paths, paths_of, resolve
from launch.recipes.overrides import refused
from launch.recipes.verl import COMMIT, text

PATHS = Paths("/m odel", "/data", "/out")
words = st.text(st.sampled_from("ab0 .:/\\'\"{}[](),=$%?*+-_#@!~|^&<>é"), max_size=12)
numbers = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | words | st.sampled_from(["null", "True", "NaN", "1e-6", "12", "a.b/c"])


def parsed(line: str):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(line).value()


def plain(value):
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, list):
        return [plain(one) for one in value]
    return value.text if isinstance(value, QuotedString) else value


@example("\\'")
@example("a\\\\'b")
@example("a\\")
@given(scalars | st.lists(scalars, max_size=3))
def test_values_survive_hydra(value):
    pytest.importorskip("hydra", reason="hydra is not installed")
    found = plain(parsed(f"key={text(value)}"))
    assert found == value
    assert repr(found) == repr(value), "1 is not True, nor 1.0"


def overrides(folder, **changes) -> dict[str, str]:
    write(folder, **changes)
    return dict(one.split("=", 1) for one in resolve(load("one", folder), PATHS).overrides)


def test_fields_reach_their_settings(tmp_path):
    found = overrides(
        tmp_path,
        rollout={
            "ignore": ["lm_head", r"re:.*mlp\.gate"],
            "tensor_parallel": 4,
            "expert_parallel": 4,
            "kv_cache": "int8",
            "send": "int8",
        },
        training={
            "cpu_adam": True,
            "parallel": {"tensor": 2, "pipeline": 2, "context": 2, "expert": 4, "last_stage_layers": 3},
        },
        correction={"level": "sequence", "threshold": 3.0, "bypass": True},
    )
    actor, rollout = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
    quantization = f"+{rollout}.engine_kwargs.vllm.hf_overrides.quantization_config"
    assert found.items() >= {
        ("model_engine", "megatron"),
        ("actor_rollout_ref.model.path", "'/m odel'"),
        ("data.train_files", "/data/t.parquet"),
        ("data.val_files", "/data/v.parquet"),
        ("data.max_prompt_length", "16"),
        ("data.max_response_length", "32"),
        (f"{rollout}.max_model_len", "48"),
        (f"{rollout}.n", "4"),
        (f"{rollout}.tensor_model_parallel_size", "4"),
        (f"{rollout}.expert_parallel_size", "4"),
        (f"{rollout}.gpu_memory_utilization", "0.5"),
        (f"+{rollout}.engine_kwargs.vllm.quantization", "ascend_quant"),
        (f"{quantization}.quant_method", "ascend_quant"),
        (f"{quantization}.scheme", "int8"),
        (f"{quantization}.kv_cache", "int8"),
        (f"+{rollout}.engine_kwargs.ascend_quant.send", "int8"),
        (f"+{actor}.optim.override_optimizer_config.optimizer_cpu_offload", "true"),
        (f"{quantization}.ignore", r"[lm_head,'re:.*mlp\.gate']"),
        (f"{actor}.megatron.tensor_model_parallel_size", "2"),
        (f"{actor}.megatron.sequence_parallel", "true"),
        (f"{actor}.megatron.pipeline_model_parallel_size", "2"),
        (f"{actor}.megatron.context_parallel_size", "2"),
        (f"{actor}.megatron.expert_model_parallel_size", "4"),
        (f"+{actor}.megatron.override_transformer_config.num_layers_in_last_pipeline_stage", "3"),
        ("algorithm.rollout_correction.rollout_is", "sequence"),
        ("algorithm.rollout_correction.rollout_is_threshold", "3.0"),
        ("algorithm.rollout_correction.rollout_is_batch_normalize", "false"),
        ("algorithm.rollout_correction.bypass_mode", "true"),
        ("algorithm.rollout_correction.loss_type", "reinforce"),
        (f"{rollout}.calculate_log_probs", "true"),
        (f"{actor}.policy_loss.loss_mode", "bypass_mode"),
        (f"+{actor}.policy_loss.rollout_correction.rollout_is", "sequence"),
        (f"+{actor}.policy_loss.rollout_correction.rollout_is_threshold", "3.0"),
        (f"+{actor}.policy_loss.rollout_correction.rollout_is_batch_normalize", "false"),
        (f"+{actor}.policy_loss.rollout_correction.loss_type", "reinforce"),
        ("trainer.nnodes", "1"),
        ("trainer.n_gpus_per_node", "8"),
        ("trainer.default_local_dir", "/out/checkpoints"),
    }
    assert not [key for key in found if "fp8" in key]


def test_fp8_training_reaches_megatron(tmp_path):
    found = overrides(tmp_path, training={"precision": "fp8", "fp8": {"param_gather": True}})
    megatron = "+actor_rollout_ref.actor.megatron"
    assert found.items() >= {
        (f"{megatron}.override_transformer_config.fp8", "e4m3"),
        (f"{megatron}.override_transformer_config.fp8_recipe", "blockwise"),
        (f"{megatron}.override_transformer_config.fp8_param", "true"),
        (f"{megatron}.override_ddp_config.fp8_param_gather", "true"),
        ("+actor_rollout_ref.actor.optim.override_optimizer_config.fp8_recipe", "blockwise"),
        ("+ray_kwargs.ray_init.runtime_env.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "'1'"),
    }
    assert resolve(load("one", tmp_path), PATHS).environment == {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}


def test_an_exact_trainer_needs_no_more_than_its_name(tmp_path):
    """What it has in place of a correction; the loss is left to the recipe."""
    found = overrides(tmp_path, backend="fsdp2", qat="int8_exact")
    assert found.items() >= {
        (f"+{OURS}.qat", "int8_exact"),
        (f"+{OPTIONS}.scheme", "int8"),
        (f"+{OPTIONS}.exact", "true"),
        ("actor_rollout_ref.rollout.calculate_log_probs", "true"),
        ("actor_rollout_ref.actor.strategy", "fsdp2"),
    }
    correction = {key.rpartition(".")[2]: value for key, value in found.items() if "correction" in key}
    assert correction == {"bypass_mode": "true", "rollout_is": "null", "rollout_rs": "null"}
    assert not [key for key in found if "policy_loss" in key]
    asked = [*(f"algorithm.rollout_correction.{name}" for name in correction), f"{OURS}.qat", f"{OPTIONS}.exact"]
    lines = list(refused(load("one", tmp_path), asked))
    assert len(lines) == len(asked) and all("--set qat=" in line for line in lines)
    assert not [key for key in overrides(tmp_path, backend="fsdp2", qat="int8") if "exact" in key]


ATTENTION = ("actor_rollout_ref.model.external_lib", "+actor_rollout_ref.model.override_config.attn_implementation")


@pytest.mark.parametrize(
    "stack, backend, ours",
    [
        ("cuda13", "fsdp2", True),
        ("cpu", "fsdp2", True),
        ("cuda13", "megatron", False),
        ("ascend-cann9.1", "fsdp2", False),
        ("ascend-cann8.5", "fsdp2", False),
    ],
)
def test_the_attention_follows_the_stack(tmp_path, stack: str, backend: str, ours: bool):
    """flash-attn, verl's default, is in no stack; on NPUs transformers has it without, and Megatron has its own."""
    found = overrides(tmp_path, stack=stack, backend=backend)
    expected = (LIBRARY, PACKED) if ours else (None, None)
    assert tuple(found.get(key) for key in ATTENTION) == expected
    tree = {"actor_rollout_ref": {"model": {"override_config": {"attn_implementation": "sdpa"}}}}
    found = overrides(tmp_path, stack=stack, backend=backend, verl=tree)  # the recipe's own is left alone
    assert tuple(found.get(key) for key in ATTENTION) == (None, "sdpa")


@pytest.mark.parametrize("backend, engine", [("fsdp2", "fsdp_config"), ("megatron", "megatron")])
def test_what_waits_on_the_host(tmp_path, backend, engine):
    actor, reference = f"actor_rollout_ref.actor.{engine}", f"actor_rollout_ref.ref.{engine}"
    shared = {"sequence_parallel": 4} if backend == "fsdp2" else {}
    found = overrides(tmp_path, backend=backend, training={"offload": True, "reference_offload": True, **shared})
    assert (found["model_engine"] == "dp") == (backend == "fsdp2")
    assert found.get("actor_rollout_ref.actor.ulysses_sequence_parallel_size") == ("4" if shared else None)
    keys = (f"{actor}.param_offload", f"{actor}.optimizer_offload", f"{reference}.param_offload")
    assert [found[key] for key in keys] == ["true"] * 3
    assert not [key for key in overrides(tmp_path, backend=backend) if "offload" in key]


def test_devices_apart(tmp_path):
    rollout = "actor_rollout_ref.rollout"
    verl = {"data": {"train_batch_size": 24}, "actor_rollout_ref": {"actor": {"ppo_mini_batch_size": 8}}}
    apart = {
        "trainer.n_gpus_per_node": "5",
        "trainer.v1.trainer_mode": "separate_async",
        "trainer.v1.separate_async.parameter_sync_step": "3",
        "actor_rollout_ref.hybrid_engine": "false",
        f"{rollout}.nnodes": "2",
        f"{rollout}.n_gpus_per_node": "3",
        f"{rollout}.checkpoint_engine.backend": "nccl",
    }
    changes = {"nodes": 2, "devices_per_node": 8, "verl": verl}
    assert overrides(tmp_path, **changes, rollout={"apart": 3, "tensor_parallel": 2}).items() >= apart.items()
    together = overrides(tmp_path, **changes)
    assert together["trainer.n_gpus_per_node"] == "8" and len(apart.keys() & together.keys()) == 1
    mode = "trainer.v1.trainer_mode"  # a user may ask for colocate_async, then
    assert not list(refused(load("one", tmp_path), apart.keys() - {"trainer.n_gpus_per_node"}))

    write(tmp_path, **changes, rollout={"apart": 3, "tensor_parallel": 2})
    chosen = {"trainer.v1.separate_async.parameter_sync_step", f"{rollout}.checkpoint_engine.backend"}
    lines = list(refused(load("one", tmp_path), apart))
    assert len(lines) == len(apart.keys() - chosen) and any(line.startswith(f"{mode} ") for line in lines)


OURS, VLLM = (f"actor_rollout_ref.rollout.engine_kwargs.{part}" for part in ("ascend_quant", "vllm"))
OPTIONS = f"{VLLM}.hf_overrides.quantization_config"
MEGATRON = "actor_rollout_ref.actor.megatron"


@pytest.mark.parametrize(
    ("key", "field"),
    [
        (f"{OURS}.send", "rollout.send"),
        (f"{OURS}.qat", "qat"),
        (f"{OPTIONS}.kv_cache", "rollout.kv_cache"),
        (f"{OPTIONS}.exact", "qat"),
        ("actor_rollout_ref.rollout.quantization", "rollout.scheme"),
        (f"{MEGATRON}.override_transformer_config.fp8", "training.precision"),
        ("algorithm.rollout_correction.rollout_is", "correction.level"),
    ],
)
def test_what_a_field_owns_is_refused_even_where_it_makes_none(tmp_path, key, field):
    write(tmp_path, stack="ascend-cann9.1", backend="fsdp2", rollout={"scheme": "bf16"})
    recipe = load("one", tmp_path)
    assert [(line.split()[0], f"--set {field}" in line) for line in refused(recipe, [key])] == [(key, True)]


def test_an_option_of_ours_that_does_not_exist_is_refused_by_name(tmp_path):
    write(tmp_path)
    recipe = load("one", tmp_path)
    assert not list(refused(recipe, [f"{OURS}.proof", f"{OURS}.base_on"]))
    (line,) = refused(recipe, [f"{OURS}.bogus"])
    assert line.startswith(f"{OURS}.bogus: ") and "proof" in line and "send" not in line


def test_the_older_verl(tmp_path):
    """It is told of our worker, which ends a sync that fails, and finds the plugin in the model's configuration, since
    its vLLM, 0.10.1, would refuse our quantization's name on a command line. It is not told what it lacks.
    """
    lacks = {"algorithm": {"filter_groups": {"enable": False, "metric": "acc"}}}
    write(tmp_path, stack="ascend-cann8.5", verl=lacks)
    found = resolve(load("one", tmp_path), PATHS)
    lines = [one for one in found.overrides if "filter_groups" in one or "vllm.quantization=" in one]
    assert (found.main, lines) == ("verl.trainer.main_ppo", [])
    assert [one for one in found.overrides if one.endswith("quant_method=ascend_quant")]
    key = "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
    for stack, scheme, worker in (
        ("ascend-cann8.5", "int8", COMMIT.worker),
        ("ascend-cann8.5", "bf16", None),
        ("ascend-cann9.1", "int8", None),
    ):
        assert overrides(tmp_path, stack=stack, rollout={"scheme": scheme}).get(key) == worker


@pytest.mark.parametrize("stack, plugin", [("ascend-cann9.1", False), ("ascend-cann8.5", False), ("cuda13", True)])
def test_bf16_on_npus_is_vllm_ascends_own(tmp_path, stack, plugin):
    """Our plugin serves no experts in BF16 there."""
    found = overrides(tmp_path, stack=stack, rollout={"scheme": "bf16"})
    assert bool([key for key in found if "quantization" in key]) == plugin


def test_files_and_variables_go_along(tmp_path):
    write(tmp_path, files={"reward.py": "launch/demo/reward.py"}, environment={"NCCL_DEBUG": "INFO"})
    found = resolve(load("one", tmp_path), PATHS)
    assert found.files["reward.py"].read_text().startswith('"""The demo\'s reward')
    assert found.environment == {"NCCL_DEBUG": "INFO"}
    assert not [one for one in found.overrides if "NCCL" in one], "the user's own value could not win"


def test_the_model_may_lie_among_the_data(tmp_path):
    write(tmp_path, model={"hub": None, "folder": "one/start"})
    recipe = load("one", tmp_path)
    assert paths_of(recipe, None, "/data", None) == Paths("/data/one/start", "/data", "runs/one")
    assert paths_of(recipe, "/m", "/data", "/out") == Paths("/m", "/data", "/out")
