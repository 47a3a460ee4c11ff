"""Combinations that cannot work are errors that say why and what to write instead."""

from pathlib import Path

import pytest
from naming import has_line_naming
from test_recipe_files import error, load, write

from launch.recipes import Paths, resolve

FP8 = {"training": {"precision": "fp8"}}
NUMBERS = {"hidden_size": 2048, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128}
LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}
MIXED = {"moe_intermediate_size": 1408, "n_shared_experts": 2}


def rollout(scheme: str, tensor: int = 2, expert: int = 1, **more) -> dict:
    return {"scheme": scheme, "tensor_parallel": tensor, "expert_parallel": expert, **more}


SCHEMES = [  # what a stack does not serve, and where trainer and engine would see different weights
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "fp8_block"}}, "Use int8 rollouts"),
    ({"stack": "ascend-cann9.1", "rollout": {"scheme": "int4_g128"}}, "INT4 … NPU"),
    ({"stack": "ascend-cann9.1", **FP8}, "Use bf16 training with int8 rollouts"),
    (
        {"stack": "ascend-cann9.1", "qat": "int4_g128", "rollout": {"scheme": "int4_g128"}},
        "Use int8 with int8 rollouts",
    ),
    ({"stack": "cpu", **FP8}, "TransformerEngine needs CUDA"),
    ({"backend": "fsdp2", **FP8}, "uses through Megatron only. Use backend megatron, or bf16 training"),
    ({"training": {"precision": "fp8", "fp8": {"param_gather": True}, "cpu_adam": True}}, "FusedAdam … on the host"),
    ({"training": {"fp8": {"format": "hybrid"}}}, "has no effect with training.precision bf16"),
    ({"qat": "int8", **FP8}, "products would round"),
    ({"qat": "int4_g128", "rollout": {"scheme": "int8"}}, "qat: int4_g128 with int8 rollouts"),
    ({"qat": "int4_g128", "rollout": {"scheme": "int4_g32"}}, "Set rollout.scheme to int4_g128"),
    ({"qat": "fp8_block", "rollout": {"scheme": "fp8_block"}}, "Choose from int4_g128, int4_g32, int8"),
    ({"model": {"int4_group": 32}, "qat": "int4_g128", "rollout": {"scheme": "int4_g128"}}, "groups of 32 … int4_g32"),
]
CACHES = [
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "int8", "kv_cache": "int8"}}, "kv_cache … ascend-cann8.5"),
    ({"stack": "ascend-cann9.1", "rollout": {"scheme": "int8", "kv_cache": "fp8"}}, "fp8 … ascend-cann9.1"),
    ({"stack": "cpu", "rollout": {"scheme": "int8", "kv_cache": "int8"}}, "kv_cache … cpu … int8"),
    ({"rollout": {"scheme": "int8", "kv_cache": "fp8"}, "model": {"numbers": NUMBERS | LATENT}}, "kv_cache … MLA"),
]
SENDING = [
    ({"rollout": {"scheme": "bf16", "send": "int8"}}, "send … int8 … bf16"),
    ({"rollout": {"scheme": "fp8_block", "send": "fp8"}}, "send … fp8 … fp8_block"),
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "int8", "send": "int8"}}, "send … ascend-cann8.5"),
    ({"rollout": {"scheme": "int8", "send": "delta"}}, "send … delta … rollout.apart"),
]
REPLAY = [
    ({"backend": "fsdp2"}, "training.routing_replay … fsdp2 … megatron"),
    ({"stack": "ascend-cann9.1"}, "training.routing_replay … ascend-cann9.1"),
    ({"model": {"numbers": NUMBERS}}, "training.routing_replay … someone/model … moe_intermediate_size"),
    ({"verl": {"actor_rollout_ref": {"rollout": {"enable_rollout_routing_replay": True}}}}, "routing_replay"),
]
DEVICES = [
    ({"rollout": {"tensor_parallel": 3}}, "8 devices … 3"),
    ({"rollout": {"tensor_parallel": 4, "expert_parallel": 2}}, "2: verl takes 1, or tensor_parallel (4)"),
    ({"training": {"parallel": {"tensor": 3}}}, "tensor 3 x pipeline 1 x context 1 = 3"),
    ({"training": {"parallel": {"pipeline": 2, "expert": 8}}}, "expert 8 x pipeline 2 = 16"),
    ({"training": {"parallel": {"last_stage_layers": 5}}}, "without pipeline stages"),
    ({"backend": "fsdp2", "training": {"parallel": {"tensor": 2}}}, "is Megatron's, and backend is fsdp2"),
    ({"backend": "fsdp2", "training": {"cpu_adam": True}}, "training.cpu_adam: is Megatron's"),
    ({"training": {"sequence_parallel": 2}}, "training.sequence_parallel: 2 … FSDP's … megatron"),
    ({"backend": "fsdp2", "training": {"sequence_parallel": 3}}, "8 devices … 3"),
    ({"rollout": {"apart": 8}}, "8 … 7"),
    ({"rollout": {"apart": 3, "tensor_parallel": 2}}, "rollout.tensor_parallel: 3 devices … 2"),
    ({"rollout": {"apart": 2}, "training": {"parallel": {"tensor": 4}}}, "training.parallel: 6 devices … tensor 4"),
    (
        {"rollout": {"apart": 1}, "backend": "fsdp2", "training": {"sequence_parallel": 2}},
        "training.sequence_parallel: 7 devices … 2",
    ),
    ({"rollout": {"apart": 2}, "verl": {"data": {"train_batch_size": 300}}}, "rollout.apart … ppo_mini_batch_size"),
    ({"rollout": {"apart": 2}, "stack": "ascend-cann8.5"}, "rollout.apart: 2 … ascend-cann8.5"),
]


@pytest.mark.parametrize("changes, said", [*SCHEMES, *CACHES, *SENDING, *DEVICES])
def test_what_cannot_work_is_refused(tmp_path: Path, changes: dict, said: str):
    assert has_line_naming(error(tmp_path, **changes), said)


@pytest.mark.parametrize("changes, said", REPLAY)
def test_routes_that_could_not_be_replayed(tmp_path: Path, changes: dict, said: str):
    assert has_line_naming(error(tmp_path, training={"routing_replay": True}, **changes), said)


@pytest.mark.parametrize(
    "numbers, rollout, said",
    [
        # 768 / 8 = 96: no whole block of 128, nor group, and 4 heads of 128 for 8 devices are copied, not cut
        ({"moe_intermediate_size": 768}, rollout("fp8_block", 8), "experts.0.gate_proj: 768 outputs / 8 = 96"),
        ({"moe_intermediate_size": 768}, rollout("int4_g128", 8), "experts.0.down_proj: 768 inputs / 8 = 96"),
        ({"intermediate_size": 9728}, rollout("fp8_block", 8), "mlp.gate_proj: 9728 outputs / 8 = 1216"),
        ({"head_dim": 64}, rollout("fp8_block", 4), "self_attn.k_proj: 256 outputs / 4 = 64"),
        ({"intermediate_size": 100}, rollout("int8", 8), "mlp.gate_proj: 100 outputs … 8"),
        (MIXED, rollout("int4_g128", 4, 4), "shared_experts.down_proj: 2816 inputs / 4 = 704"),
        ({"moe_intermediate_size": 768}, rollout("fp8_block", 8, 8), None),
        ({"intermediate_size": 100}, rollout("fp8_block", 1), None),
        (MIXED, rollout("int4_g128", 4, 4, ignore=["re:.*shared_experts.*"]), None),
    ],
)
def test_slices_are_whole_groups_and_blocks(tmp_path: Path, numbers: dict, rollout: dict, said: str | None):
    changes = {"model": {"numbers": {**NUMBERS, **numbers}}, "rollout": rollout}
    if said is None:
        write(tmp_path, **changes)
        load("one", tmp_path)
    else:
        message = error(tmp_path, **changes)
        assert has_line_naming(message, said)
        assert "k_proj" in said or "k_proj" not in message


@pytest.mark.parametrize(
    "numbers, ignore, part, layer",
    [
        ({}, ["re:.*q_proj"], "0.self_attn.q_proj", "0.self_attn.qkv_proj"),
        ({}, ["model.layers.7.self_attn.k_proj"], "7.self_attn.k_proj", "7.self_attn.qkv_proj"),
        (MIXED, ["re:.*shared_experts.up"], "0.mlp.shared_experts.up_proj", "0.mlp.shared_experts.gate_up_proj"),
        (MIXED, ["re:.*experts.*down_proj"], "0.mlp.experts.0.down_proj", "0.mlp.experts"),
    ],
)
def test_half_of_a_layer_cannot_be_left_alone(tmp_path: Path, numbers: dict, ignore: list[str], part: str, layer: str):
    changes = {"model": {"numbers": {**NUMBERS, **numbers}}, "rollout": rollout("int8", 1, ignore=ignore)}
    message = error(tmp_path, **changes)
    assert "rollout.ignore" in message and f"names model.layers.{part}, not " in message
    assert has_line_naming(message, f"one layer, model.layers.{layer}:")


@pytest.mark.parametrize(
    "numbers, ignore",
    [
        ({}, [f"model.layers.7.self_attn.{part}_proj" for part in "qkv"]),
        (MIXED, [r"re:.*mlp\.gate", "re:.*mlp.experts", "re:.*qkv_proj", "lm_head"]),
    ],
)
def test_whole_layers_can(tmp_path: Path, numbers: dict, ignore: list[str]):
    write(tmp_path, model={"numbers": {**NUMBERS, **numbers}}, rollout=rollout("int8", 1, ignore=ignore))
    load("one", tmp_path)


@pytest.mark.parametrize(
    "what, heads, pairs, ranks, said",
    [
        ("training.sequence_parallel", 28, 4, 8, "28 attention heads … 8"),
        ("rollout.tensor_parallel", 24, 6, 4, "6 key and value heads … 4"),
        ("training.parallel.tensor", 3, 3, 2, "3 attention heads … 2"),
        ("rollout.tensor_parallel", 32, 4, 8, None),
        ("training.sequence_parallel", 40, 8, 8, None),
    ],
)
def test_heads_are_shared_out(tmp_path: Path, what: str, heads: int, pairs: int, ranks: int, said: str | None):
    """vLLM, Megatron and Ulysses refuse what they cannot share, minutes after the start; layers may have any size."""
    share: dict | int = ranks
    for part in reversed(what.split(".")):
        share = {part: share}
    numbers = {"hidden_size": 1280, "num_attention_heads": heads, "num_key_value_heads": pairs, "head_dim": 64}
    changes = {"model": {"numbers": numbers}, "rollout": {"tensor_parallel": 1}, **share}
    changes["backend"] = "fsdp2" if "sequence" in what else "megatron"
    if said is None:
        write(tmp_path, **changes)
        load("one", tmp_path)
    else:
        assert has_line_naming(error(tmp_path, **changes), f"{what}: {said}")


def actor(tokens: int) -> dict:
    return {"actor_rollout_ref": {"actor": {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": tokens}}}


@pytest.mark.parametrize(
    "backend, training, tokens",
    [("fsdp2", {}, 48), ("fsdp2", {"sequence_parallel": 4}, 12), ("megatron", {"parallel": {"context": 2}}, 24)],
)
def test_the_longest_sequence_fits_a_micro_batch(tmp_path: Path, backend: str, training: dict, tokens: int):
    """16 + 32 tokens, among the devices that share a sequence."""
    write(tmp_path, backend=backend, training=training, verl=actor(tokens))
    load("one", tmp_path)
    message = error(tmp_path, backend=backend, training=training, verl=actor(tokens - 1))
    assert has_line_naming(message, f"ppo_max_token_len_per_gpu: {tokens - 1} … {tokens}")


def test_the_longest_sequence_is_prefilled_at_once(tmp_path: Path):
    engine = {"enable_chunked_prefill": False, "max_num_batched_tokens": 48}
    write(tmp_path, verl={"actor_rollout_ref": {"rollout": engine}})
    load("one", tmp_path)
    message = error(tmp_path, verl={"actor_rollout_ref": {"rollout": {**engine, "max_num_batched_tokens": 47}}})
    assert has_line_naming(message, "max_num_batched_tokens: 47 … 48")


def test_what_a_stacks_verl_lacks_is_said(tmp_path: Path):
    tree = {"algorithm": {"filter_groups": {"enable": True, "metric": "acc"}}}
    message = error(tmp_path, stack="ascend-cann8.5", verl=tree)
    assert "--set verl.algorithm.filter_groups.enable=false" in message and len(message.splitlines()) == 1
    write(tmp_path, stack="ascend-cann8.5", verl=tree)
    load("one", tmp_path, changes={"verl.algorithm.filter_groups.enable": "false"})  # as it says
    write(tmp_path, stack="ascend-cann9.1", verl=tree)
    load("one", tmp_path)


@pytest.mark.parametrize(
    "tree, said",
    [
        ({"trainer": {"nnodes": 3}}, "trainer.nnodes … (1): --set nodes="),
        ({"actor_rollout_ref": {"model": {"path": "/m"}}}, "model.path … --model"),
        ({"actor_rollout_ref": {"actor": {"optim": {"lr": "12"}}}}, "lr=12: is text in YAML"),
        ({"actor_rollout_ref": {"ref": {"fsdp_config": {"model_dtype": "bf16"}}}}, "rotary"),
        ({"actor_rollout_ref": {"actor": {"use_torch_compile": False}}}, "actor.fsdp_config.use_torch_compile"),
        ({"actor_rollout_ref": {"actor": 5}}, "actor_rollout_ref.actor: a mapping is needed"),
        ({"actor_rollout_ref": {"actor": {"megatron": None}}}, "actor_rollout_ref.actor.megatron holds "),
        ({"actor_rollout_ref": {"actor": {"ppo_max_token_len_per_gpu": "abc"}}}, "'abc': a whole number"),
        ({"+trainer": 1}, "'+trainer' is no name"),
    ],
)
def test_the_free_tree(tmp_path: Path, tree: dict, said: str):
    assert has_line_naming(error(tmp_path, verl=tree), said)


def test_a_recipe_may_choose_again_what_is_left_to_everyone(tmp_path: Path):
    tree = {"actor_rollout_ref": {"actor": {"fsdp_config": {"use_torch_compile": True}}}}
    write(tmp_path, backend="fsdp2", verl=tree)
    lines = resolve(load("one", tmp_path), Paths("/m", "/d", "/o")).overrides
    assert "actor_rollout_ref.actor.fsdp_config.use_torch_compile=true" in lines
