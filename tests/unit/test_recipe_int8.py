"""The INT8 recipes: the figures of the runs that they follow, and twins that differ in the scheme alone."""

import re

import pytest
from test_recipe_verl_commit import parsed

from ascend_quant.recipes import leaves
from ascend_quant.recipes.compose import alone, plain
from launch.environment.resolve import TABLE
from launch.recipes import load, names, paths_of, resolve

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


def told(name: str, *changes: str) -> dict[str, object]:
    """What verl is told by a recipe: hydra's own reading of every override, by its key."""
    recipe = load(name, changes)
    lines = resolve(recipe, paths_of(recipe, None, "/data", "/out"))
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


@pytest.mark.parametrize("name", [name for name in names() if name.startswith("qwen")])
def test_engines_capture_graphs_but_where_the_code_refuses_experts_in_them(name: str):
    """vllm-ascend 0.10 alone does, among fewer ranks than its own compat.py says; a BF16 twin goes with its recipe."""
    pytest.importorskip("hydra", reason="hydra is not installed")
    key = "actor_rollout_ref.rollout.enforce_eager"
    stacks = ("ascend-cann9.1", "ascend-cann8.5") if load(name).stack.startswith("ascend") else (load(name).stack,)
    for stack in stacks:
        refused = stack == "ascend-cann8.5" and "30b-a3b" in name
        changes = ["algorithm.filter_groups.enable=false"] if stack == "ascend-cann8.5" else []
        assert told(name, f"stack={stack}", *changes).get(key, False) is refused, stack


def test_sixteen_ranks_serve_experts_in_graphs_everywhere_and_the_choice_is_the_users():
    rollout, name = "actor_rollout_ref.rollout", "qwen3-30b-a3b-int8-grpo-a3"
    whole = [f"{rollout}.{kind}_parallel_size=16" for kind in ("tensor_model", "expert")]
    for changes in (whole, [f"{rollout}.enforce_eager=false"]):
        assert told(name, "stack=ascend-cann8.5", *changes)[f"{rollout}.enforce_eager"] is False


QUANTIZATION = "actor_rollout_ref.rollout.engine_kwargs.vllm.hf_overrides.quantization_config"
NAMED = {"recipe.name", "recipe.summary", "recipe.out", "trainer.experiment_name", "trainer.default_local_dir"}
KINDS = {  # of variants: what tells their names apart, and their settings
    "-bf16-": ("-int8-", {f"{QUANTIZATION}.scheme": "bf16"}),
    "-kv8-": ("-", {f"{QUANTIZATION}.kv_cache": "int8"}),
    "-r3-": (
        "-",
        {
            "actor_rollout_ref.rollout.enable_rollout_routing_replay": True,
            "actor_rollout_ref.actor.megatron.router_replay.mode": "R3",
        },
    ),
    "-ep-": ("-", {"actor_rollout_ref.rollout.expert_parallel_size": 4}),
}
VARIANTS = [(name, kind) for name in names() for kind in KINDS if kind in f"{name}-"]


def settings_of(name: str) -> dict[str, object]:
    return dict(leaves(plain(alone(name))))


@pytest.mark.parametrize("name, kind", VARIANTS)
def test_a_variant_differs_in_one_thing_alone(name: str, kind: str):
    """On NPUs BF16 is vllm-ascend's own: none of our plugin's settings is there."""
    instead, changed = KINDS[kind]
    of = f"{name}-".replace(kind, instead).removesuffix("-")
    variant, twin = settings_of(name), settings_of(of)
    differ = {key: variant.get(key) for key in variant.keys() | twin.keys() if variant.get(key) != twin.get(key)}
    if kind == "-bf16-" and variant["recipe.stack"].startswith("ascend"):
        changed = {key: None for key in twin if key.startswith(QUANTIZATION) or key.endswith("vllm.quantization")}
    assert {key: value for key, value in differ.items() if key not in NAMED} == changed
    assert load(of).rollout.scheme == "int8" and load(name).rollout.scheme == ("bf16" if kind == "-bf16-" else "int8")


def test_every_int8_recipe_has_its_twin_and_each_kind_of_variant_is_there():
    assert {kind for _, kind in VARIANTS} == KINDS.keys()
    plain = {name for name in names() if "-int8-" in name and not re.search("-(kv8|r3|ep|exact)-", name)}
    assert plain and all(name.replace("-int8-", "-bf16-") in names() for name in plain)


@pytest.mark.parametrize("name", [name for name in names() if "-exact-" in name])
def test_an_exact_recipe_trains_what_its_int8_twin_does(name: str):
    """But for the correction that it does not need, and engines of no more devices than can be exact."""
    variant, plain = (settings_of(one) for one in (name, name.replace("-exact-", "-")))
    ranks = "actor_rollout_ref.rollout.tensor_model_parallel_size"
    assert (variant.pop(ranks), plain.pop(ranks)) in ((1, 4), (2, 4)) and load(name).is_exact
    differ = {key for key in variant.keys() | plain.keys() if variant.get(key) != plain.get(key)} - NAMED
    assert all("correction" in key or key.endswith((".qat", ".exact", ".loss_mode")) for key in differ)


@pytest.mark.parametrize("name", [name for name in names() if "-ep-" in name])
def test_tokens_that_mc2_hands_on_fit_the_buffer_that_it_takes(name: str):
    """CANN's own check of a dispatch and its combine, for the 512 tokens of vLLM's largest graph, a share a rank."""
    pytest.importorskip("hydra", reason="hydra is not installed")
    key, hidden, experts, chosen = "actor_rollout_ref.rollout", 2048, 128, 8
    ranks = told(name)[f"{key}.expert_parallel_size"]
    assert ranks == told(name)[f"{key}.tensor_model_parallel_size"]
    tokens, places = 512 // ranks, experts // ranks
    sent, returned = -(-(2 * hidden + 64) // 512) * 512, -(-2 * hidden // 512) * 512
    needed = 2 * tokens * (sent * ranks * places + returned * chosen)
    assert needed < int(next(row.value for row in TABLE if row.name == "HCCL_BUFFSIZE")) * 2**20
