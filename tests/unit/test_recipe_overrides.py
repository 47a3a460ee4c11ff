"""Values survive hydra's command line, and every choice of a recipe reaches the settings that it is for."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from test_recipe_files import ACTOR, ROLLOUT, load, write
from test_recipe_rules import MEGATRON, OPTIONS, QAT

from ascend_quant.integrations.verl.training.attention_settings import LIBRARY, PACKED
from ascend_quant.recipes.keys import CORRECTION
from launch.recipes import Paths, paths_of, resolve
from launch.recipes.verl import text, verl_of

PATHS = Paths("/m odel", "/data", "/out")
words = st.text(st.sampled_from("ab0 .:/\\'\"{}[](),=$%?*+-_#@!~|^&<>é"), max_size=12)
numbers = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False, allow_infinity=False)
scalars = st.none() | st.booleans() | numbers | words | st.sampled_from(["null", "True", "NaN", "1e-6", "12", "a.b/c"])
lists = st.lists(scalars, max_size=3)


def plain(value):
    from hydra.core.override_parser.types import QuotedString

    if isinstance(value, list):
        return [plain(one) for one in value]
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    return value.text if isinstance(value, QuotedString) else value


@example("\\'")
@example("a\\\\'b")
@example("a\\")
@given(scalars | lists | st.lists(st.dictionaries(st.sampled_from(["a", "b_c"]), scalars | lists), max_size=2))
def test_values_survive_hydra(value):
    from hydra.core.override_parser.overrides_parser import OverridesParser

    found = plain(OverridesParser.create().parse_override(f"key={text(value)}").value())
    assert found == value
    assert repr(found) == repr(value), "1 is not True, nor 1.0"


def overrides(folder, *changes: str) -> dict[str, str]:
    lines = resolve(load(write(folder), changes), PATHS)
    return dict(one.split("=", 1) for one in lines)


def test_choices_reach_their_settings(tmp_path):
    found = overrides(
        tmp_path,
        *("kv=int8", "send=int8", "optimizer=cpu", "correction=bypass", f"{CORRECTION}.rollout_is_threshold=3.0"),
        f"{OPTIONS}.ignore=[lm_head,'re:.*mlp\\.gate']",
        f"{MEGATRON}.tensor_model_parallel_size=2",
    )
    assert found.items() >= {
        ("model_engine", "megatron"),
        ("actor_rollout_ref.model.path", "'/m odel'"),
        ("data.train_files", "/data/t.parquet"),
        ("data.val_files", "/data/v.parquet"),
        ("data.max_prompt_length", "16"),
        (f"{ROLLOUT}.max_model_len", "48"),
        (f"{ROLLOUT}.tensor_model_parallel_size", "2"),
        (f"+{ROLLOUT}.engine_kwargs.vllm.quantization", "ascend_quant"),
        (f"+{OPTIONS}.quant_method", "ascend_quant"),
        (f"+{OPTIONS}.scheme", "int8"),
        (f"+{OPTIONS}.kv_cache", "int8"),
        (f"+{OPTIONS}.ignore", r"[lm_head,'re:.*mlp\.gate']"),
        (f"+{ROLLOUT}.engine_kwargs.ascend_quant.send", "int8"),
        (f"+{ACTOR}.optim.override_optimizer_config.optimizer_cpu_offload", "true"),
        (f"{MEGATRON}.sequence_parallel", "true"),
        (f"{MEGATRON}.pipeline_model_parallel_size", "1"),
        (f"{CORRECTION}.rollout_is", "token"),
        (f"{CORRECTION}.bypass_mode", "true"),
        (f"{CORRECTION}.loss_type", "reinforce"),
        (f"{ROLLOUT}.calculate_log_probs", "true"),
        (f"{ACTOR}.policy_loss.loss_mode", "bypass_mode"),
        (f"+{ACTOR}.policy_loss.rollout_correction.rollout_is", "token"),
        (f"+{ACTOR}.policy_loss.rollout_correction.rollout_is_threshold", "3.0"),
        (f"+{ACTOR}.policy_loss.rollout_correction.loss_type", "reinforce"),
        ("trainer.n_gpus_per_node", "8"),
        ("trainer.default_local_dir", "/out/checkpoints"),
    }
    assert not [key for key in found if "fp8" in key]


def test_fp8_training_reaches_megatron(tmp_path):
    found = overrides(tmp_path, "precision=fp8")
    assert found.items() >= {
        (f"+{MEGATRON}.override_transformer_config.fp8", "e4m3"),
        (f"+{MEGATRON}.override_transformer_config.fp8_recipe", "blockwise"),
        ("+ray_kwargs.ray_init.runtime_env.env_vars.NVTE_FP8_BLOCK_SCALING_FP32_SCALES", "'1'"),
    }
    assert load(write(tmp_path), ["precision=fp8"]).environment == {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}


def test_an_exact_trainer_needs_no_more_than_its_name(tmp_path):
    """What it has in place of a correction; the loss is left to the recipe."""
    found = overrides(tmp_path, "backend=fsdp2", "correction=exact")
    assert found.items() >= {(f"+{QAT}", "int8_exact"), (f"+{OPTIONS}.scheme", "int8"), (f"+{OPTIONS}.exact", "true")}
    correction = {key.rpartition(".")[2]: value for key, value in found.items() if "correction" in key}
    assert correction == {"bypass_mode": "true", "rollout_is": "null", "rollout_rs": "null"}
    assert not [key for key in found if "policy_loss" in key]
    assert not [key for key in overrides(tmp_path, "backend=fsdp2", f"{QAT}=int4_g32") if "exact" in key]


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
    chosen = (f"stack={stack}", f"backend={backend}")
    expected = (LIBRARY, PACKED) if ours else (None, None)
    assert tuple(map(overrides(tmp_path, *chosen).get, ATTENTION)) == expected
    own = overrides(tmp_path, *chosen, f"{ATTENTION[1].lstrip('+')}=sdpa")  # the user's own is left alone
    assert own[ATTENTION[1]] == "sdpa"


def test_devices_apart(tmp_path):
    batch = ("trainer.nnodes=2", "data.train_batch_size=24", f"{ACTOR}.ppo_mini_batch_size=8")
    apart = {
        "trainer.v1.trainer_mode": "separate_async",
        "trainer.v1.separate_async.parameter_sync_step": "3",
        "actor_rollout_ref.hybrid_engine": "false",
        f"{ROLLOUT}.nnodes": "2",
        f"{ROLLOUT}.checkpoint_engine.backend": "nccl",
    }
    devices = ("trainer.n_gpus_per_node=5", f"{ROLLOUT}.n_gpus_per_node=3")
    assert overrides(tmp_path, *batch, "placement=apart", *devices).items() >= apart.items()
    recipe = load(write(tmp_path), [*batch, "placement=apart", *devices])
    assert (recipe.devices_per_node, recipe.rollout.apart, recipe.devices) == (8, 3, 16)
    assert not apart.keys() & overrides(tmp_path, *batch).keys()


def test_the_older_verl(tmp_path):
    """It is told of our worker, which ends a sync that fails, and finds the plugin in the model's configuration, since
    its vLLM, 0.10.1, would refuse our quantization's name on a command line. It is not told what it lacks.
    """
    lacks = [f"algorithm.filter_groups.{one}" for one in ("enable=false", "metric=acc")]
    found = resolve(load(write(tmp_path), ["stack=ascend-cann8.5", *lacks]), PATHS)
    lines = [one for one in found if "filter_groups" in one or "vllm.quantization=" in one]
    assert (verl_of("ascend-cann8.5").main, lines) == ("verl.trainer.main_ppo", [])
    assert [one for one in found if one.endswith("quant_method=ascend_quant")]
    key = "+actor_rollout_ref.rollout.engine_kwargs.vllm.worker_extension_cls"
    for stack, scheme, told in (
        ("ascend-cann8.5", "int8", True),
        ("ascend-cann8.5", "bf16", False),
        ("ascend-cann9.1", "int8", False),
    ):
        assert (key in overrides(tmp_path, f"stack={stack}", f"scheme={scheme}")) == told


@pytest.mark.parametrize("stack, plugin", [("ascend-cann9.1", False), ("ascend-cann8.5", False), ("cuda13", True)])
def test_bf16_on_npus_is_vllm_ascends_own(tmp_path, stack, plugin):
    """Our plugin serves no experts in BF16 there."""
    found = overrides(tmp_path, f"stack={stack}", "scheme=bf16")
    assert bool([key for key in found if "quantization" in key]) == plugin
    assert load(write(tmp_path), [f"stack={stack}", "scheme=bf16"]).uses_plugin == plugin


def test_the_users_own_prefixes_and_references_stay(tmp_path):
    """verl's own config knows what ours alone does not, and hydra's settings are none of verl's."""
    given = ("+trainer.new={a: 1}", "trainer.test_freq=${trainer.save_freq}", "hydra.run.dir=/x")
    lines = resolve(load(write(tmp_path), [*given, "~trainer.use_v1"]), PATHS)
    assert {"+trainer.new.a=1", "trainer.test_freq='${trainer.save_freq}'", "hydra.run.dir=/x", "~trainer.use_v1"} <= {
        *lines
    }


def test_files_and_variables_go_along(tmp_path):
    (tmp_path / "reward.py").write_text("# mine\n")
    given = ["recipe.files={reward.py: reward.py}", "recipe.environment.NCCL_DEBUG=INFO"]
    found = load(write(tmp_path), given)
    assert Path(found.files["reward.py"]).read_text() == "# mine\n"
    assert found.environment == {"NCCL_DEBUG": "INFO"}
    assert not [one for one in resolve(found, PATHS) if "NCCL" in one], "the user's own value could not win"


def test_the_model_may_lie_among_the_data(tmp_path):
    recipe = load(write(tmp_path), ["recipe.model={hub: null, folder: one/start}"])
    assert paths_of(recipe, None, "/data", None) == Paths("/data/one/start", "/data", "runs/one")
    assert paths_of(recipe, "/m", "/data", "/out") == Paths("/m", "/data", "/out")


def test_what_is_deleted_leaves_nothing(tmp_path):
    ours = QAT.removesuffix(".qat")
    assert f"+{ours}.send" in overrides(tmp_path, "send=int8")
    assert not [key for key in overrides(tmp_path, "send=int8", f"~{ours}.send") if ours in key]
