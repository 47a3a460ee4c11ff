"""The INT8 recipes: the figures of the runs that they follow, and twins that differ in the scheme alone."""

import pytest
from test_recipe_verl_commit import parsed

from launch.recipes import load, names, paths_of, resolve
from launch.recipes.verl import leaves

TWINS = [name for name in names() if "-bf16" in name]
WITH_CACHE = [name for name in names() if "-kv8-" in name]

# Both runs as their users described them, in verl's words.
GSM8K_RUN = {
    "data.max_prompt_length": 2048,
    "data.max_response_length": 10240,
    "data.train_batch_size": 16,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 8,
    "actor_rollout_ref.rollout.n": 4,
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 2,
    "actor_rollout_ref.actor.optim.lr": 5e-8,
    "actor_rollout_ref.actor.use_kl_loss": True,
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.kl_loss_type": "low_var_kl",
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.3,
    "actor_rollout_ref.rollout.enable_chunked_prefill": False,
    "actor_rollout_ref.model.use_remove_padding": True,
    "actor_rollout_ref.actor.use_dynamic_bsz": True,
    "actor_rollout_ref.actor.ppo_max_token_len_per_gpu": 12288,
    "actor_rollout_ref.model.enable_gradient_checkpointing": True,
    "actor_rollout_ref.ref.fsdp_config.param_offload": True,
    "trainer.total_epochs": 1,
}
MATH_RUN = {
    "data.max_prompt_length": 2048,
    "data.max_response_length": 30720,
    "data.train_batch_size": 32,
    "actor_rollout_ref.actor.ppo_mini_batch_size": 32,
    "actor_rollout_ref.rollout.n": 8,
    "actor_rollout_ref.rollout.max_num_seqs": 1024,
    "actor_rollout_ref.rollout.max_num_batched_tokens": 2048 + 30720,
    "actor_rollout_ref.actor.optim.lr": 1e-6,
    "actor_rollout_ref.actor.optim.lr_warmup_steps": 10,
    "actor_rollout_ref.actor.optim.weight_decay": 0.1,
    "actor_rollout_ref.actor.clip_ratio_low": 0.2,
    "actor_rollout_ref.actor.clip_ratio_high": 0.28,
    "actor_rollout_ref.actor.clip_ratio_c": 10.0,
    "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    "actor_rollout_ref.actor.kl_loss_coef": 0.001,
    "actor_rollout_ref.actor.entropy_coeff": 0,
    "actor_rollout_ref.rollout.tensor_model_parallel_size": 4,
    "actor_rollout_ref.rollout.gpu_memory_utilization": 0.6,
    "actor_rollout_ref.rollout.enforce_eager": True,
    "actor_rollout_ref.rollout.free_cache_engine": True,
    "actor_rollout_ref.rollout.temperature": 1.0,
    "trainer.total_training_steps": 100,
}
CORRECTION = {
    "rollout_is": "token",
    "rollout_is_threshold": 2.0,
    "rollout_is_batch_normalize": False,
    "bypass_mode": True,
    "loss_type": "reinforce",
}
ULYSSES_16 = {
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size": 16,
    "actor_rollout_ref.actor.fsdp_config.param_offload": True,
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload": True,
}


def told(name: str) -> dict[str, object]:
    """What verl is told by a recipe: hydra's own reading of every override, by its key."""
    recipe = load(name)
    lines = resolve(recipe, paths_of(recipe, None, "/data", "/out")).overrides
    return {key: value for key, _, value in map(parsed, lines)}


@pytest.mark.parametrize(
    "name, figures",
    [
        ("qwen2.5-7b-int8-gsm8k-a2", GSM8K_RUN),
        ("qwen3-30b-a3b-int8-grpo-a3", {**MATH_RUN, **ULYSSES_16}),
        ("qwen3-30b-a3b-int8-grpo-2xa2", {**MATH_RUN, **ULYSSES_16}),
        ("qwen3-30b-a3b-int8-megatron-a3", MATH_RUN),
        ("qwen3-30b-a3b-int8-megatron-2xa2", MATH_RUN),
    ],
)
def test_the_existing_runs_figures(name: str, figures: dict[str, object]):
    pytest.importorskip("hydra", reason="hydra is not installed")
    correction = {f"algorithm.rollout_correction.{key}": value for key, value in CORRECTION.items()}
    found = told(name)
    assert {key: found.get(key) for key in {**figures, **correction}} == {**figures, **correction}


@pytest.mark.parametrize(
    "name, nodes, devices, memory",
    [
        ("qwen2.5-7b-int8-gsm8k-a2", 1, 8, 64),
        ("qwen2.5-7b-int8-dapo-a2", 1, 8, 64),
        ("qwen3-30b-a3b-int8-grpo-a3", 1, 16, 64),
        ("qwen3-30b-a3b-int8-grpo-2xa2", 2, 8, 64),
        ("qwen3-30b-a3b-int8-megatron-a3", 1, 16, 64),
        ("qwen3-30b-a3b-int8-megatron-2xa2", 2, 8, 64),
        ("qwen2.5-32b-int8-dapo-a3", 1, 16, 64),
        ("qwen2.5-7b-int8-gsm8k-h100", 1, 8, 80),
        ("qwen2.5-7b-int8-dapo-h100", 1, 8, 80),
        ("qwen3-30b-a3b-int8-grpo-h200", 1, 8, 141),
        ("qwen3-30b-a3b-int8-megatron-h200", 1, 8, 141),
        ("qwen2.5-32b-int8-dapo-h200", 1, 8, 141),
    ],
)
def test_every_run_that_is_asked_for_is_there(name: str, nodes: int, devices: int, memory: int):
    recipe = load(name)
    assert (recipe.nodes, recipe.devices_per_node, recipe.memory.device) == (nodes, devices, memory)
    assert recipe.stack == ("ascend-cann9.1" if memory == 64 else "cuda13")
    assert recipe.correction.threshold == 2.0
    assert name.replace("-int8-", "-bf16-") in TWINS


@pytest.mark.parametrize("name", TWINS)
def test_a_twin_differs_in_the_scheme_alone(name: str):
    twin, int8 = (load(one).model_dump() for one in (name, name.replace("-bf16", "-int8")))
    twin, int8 = dict(leaves(twin)), dict(leaves(int8))
    assert {key for key in twin if twin[key] != int8[key]} == {"name", "summary", "rollout.scheme"}
    assert (twin["rollout.scheme"], int8["rollout.scheme"]) == ("bf16", "int8")


@pytest.mark.parametrize("name", WITH_CACHE)
def test_a_variant_for_long_answers_differs_in_the_cache_alone(name: str):
    variant, plain = (dict(leaves(load(one).model_dump())) for one in (name, name.replace("-kv8-", "-")))
    assert {key for key in variant if variant[key] != plain[key]} == {"name", "summary", "rollout.kv_cache"}
    assert (variant["rollout.kv_cache"], plain["rollout.kv_cache"]) == ("int8", "auto")
    assert plain["rollout.max_response_length"] >= 10240


def test_the_variant_that_replays_routes_differs_in_that_alone():
    (name,) = [name for name in names() if load(name).training.routing_replay]
    variant, plain = (dict(leaves(load(one).model_dump())) for one in (name, name.replace("-r3-", "-")))
    assert {key for key in variant if variant[key] != plain[key]} == {"name", "summary", "training.routing_replay"}
    assert (load(name).backend, load(name).rollout.scheme) == ("megatron", "int8")
