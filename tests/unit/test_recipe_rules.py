"""Combinations that cannot work are errors that say why and what to write instead."""

from pathlib import Path

import pytest
from naming import has_line_naming
from test_recipe_files import error, load, write

from launch.recipes import Paths, resolve

FP8 = {"training": {"precision": "fp8"}}
SCHEMES = [  # what a stack does not serve, and where trainer and engine would see different weights
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "fp8_block"}}, "fp8_block … ascend-cann8.5"),
    ({"stack": "ascend-cann9.1", "rollout": {"scheme": "int4_g128"}}, "int4_g128 … ascend-cann9.1"),
    ({"stack": "ascend-cann9.1", **FP8}, "Use bf16 training with int8 rollouts"),
    ({"backend": "fsdp2", **FP8}, "uses through Megatron only. Use backend megatron, or bf16 training"),
    ({"training": {"precision": "fp8", "fp8": {"param_gather": True}, "cpu_adam": True}}, "FusedAdam … on the host"),
    ({"training": {"fp8": {"format": "hybrid"}}}, "has no effect with training.precision bf16"),
    ({"qat": "int8", **FP8}, "qat: int8 … fp8"),
    ({"qat": "int4_g128", "rollout": {"scheme": "int8"}}, "qat: int4_g128 with int8 rollouts"),
    ({"qat": "int4_g128", "rollout": {"scheme": "int4_g32"}}, "Set rollout.scheme to int4_g128"),
]
CACHES = [
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "int8", "kv_cache": "int8"}}, "kv_cache … ascend-cann8.5"),
    ({"stack": "ascend-cann9.1", "rollout": {"scheme": "int8", "kv_cache": "fp8"}}, "fp8 … ascend-cann9.1"),
    ({"stack": "cpu", "rollout": {"scheme": "int8", "kv_cache": "int8"}}, "int8 … cpu"),
]
SENDING = [
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "int8", "send": "int8"}}, "send … ascend-cann8.5"),
    ({"stack": "ascend-cann8.5", "rollout": {"scheme": "int8"}, "qat": "int8"}, "qat: int8 … ascend-cann8.5"),
]
REPLAY = [
    ({"backend": "fsdp2"}, "training.routing_replay … fsdp2 … megatron"),
    ({"stack": "ascend-cann9.1"}, "training.routing_replay … ascend-cann9.1"),
    ({"verl": {"actor_rollout_ref": {"rollout": {"enable_rollout_routing_replay": True}}}}, "routing_replay"),
]
EXACT = [
    ({"rollout": {"scheme": "fp8"}}, "qat: int8_exact … fp8 … rollout.scheme to int8, "),
    ({"rollout": {"ignore": ["re:.*down_proj"]}}, "rollout.ignore … down_proj … []"),
    ({"rollout": {"kv_cache": "int8"}}, "rollout.kv_cache: int8 … auto"),
    ({"rollout": {"tensor_parallel": 4}}, "rollout.tensor_parallel: 4 … 1 or 2"),
    ({"rollout": {"expert_parallel": 2}}, "rollout.expert_parallel: 2 … 1"),
    ({"rollout": {"apart": 2}}, "rollout.apart: 2 … 0"),
    ({"backend": "megatron"}, "backend: megatron … fsdp2"),
    ({"stack": "ascend-cann9.1"}, "qat: int8_exact … ascend-cann9.1 … NPUs"),
    ({"stack": "ascend-cann8.5"}, "qat: int8_exact … ascend-cann8.5 … 0.8.0.dev"),
    ({"correction": {"level": "token"}}, "correction: … token … int8_exact"),
    ({"qat": "int8_exat"}, "qat: 'int8_exat' … fp8 … int8_exact"),
    ({"verl": {"algorithm": {"rollout_correction": {"rollout_rs": "token_k1"}}}}, "rollout_rs … --set qat"),
]
DEVICES = [
    ({"rollout": {"tensor_parallel": 3}}, "rollout.tensor_parallel: 8 devices … 3"),
    ({"rollout": {"apart": 3, "tensor_parallel": 2}}, "rollout.tensor_parallel: 3 devices … 2"),
    ({"backend": "fsdp2", "training": {"parallel": {"tensor": 2}}}, "training.parallel: … fsdp2"),
    ({"backend": "fsdp2", "training": {"cpu_adam": True}}, "training.cpu_adam: … fsdp2"),
    ({"training": {"sequence_parallel": 2}}, "training.sequence_parallel: 2 … fsdp2 … megatron"),
    ({"rollout": {"apart": 8}}, "8 … 7"),
    ({"rollout": {"apart": 2}, "verl": {"data": {"train_batch_size": 300}}}, "rollout.apart … ppo_mini_batch_size"),
]


@pytest.mark.parametrize("changes, said", [*SCHEMES, *CACHES, *SENDING, *DEVICES])
def test_what_cannot_work_is_refused(tmp_path: Path, changes: dict, said: str):
    assert has_line_naming(error(tmp_path, **changes), said)


@pytest.mark.parametrize("changes, said", REPLAY)
def test_routes_that_could_not_be_replayed(tmp_path: Path, changes: dict, said: str):
    assert has_line_naming(error(tmp_path, training={"routing_replay": True}, **changes), said)


@pytest.mark.parametrize("changes, said", EXACT)
def test_what_an_exact_trainer_cannot_be(tmp_path: Path, changes: dict, said: str):
    """Each alone, of a recipe that is taken without it; a line more where the older verl would not read it either."""
    exact = {"qat": "int8_exact", "backend": "fsdp2"}
    write(tmp_path, **exact)
    load("one", tmp_path)
    message = error(tmp_path, **{**exact, **changes})
    assert has_line_naming(message, said)
    assert len(message.splitlines()) == (2 if "ascend-cann8.5" in changes.values() else 1)


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
        ({"actor_rollout_ref": {"ref": {"fsdp_config": {"model_dtype": "bf16"}}}}, "rotary"),
        ({"actor_rollout_ref": {"actor": {"use_torch_compile": False}}}, "actor.fsdp_config.use_torch_compile"),
        ({"actor_rollout_ref": {"actor": 5}}, "actor_rollout_ref.actor holds "),
        ({"actor_rollout_ref": {"actor": {"megatron": None}}}, "actor_rollout_ref.actor.megatron holds "),
    ],
)
def test_the_free_tree(tmp_path: Path, tree: dict, said: str):
    assert has_line_naming(error(tmp_path, verl=tree), said)


def test_a_recipe_may_choose_again_what_is_left_to_everyone(tmp_path: Path):
    tree = {"actor_rollout_ref": {"actor": {"fsdp_config": {"use_torch_compile": True}}}}
    write(tmp_path, backend="fsdp2", verl=tree)
    lines = resolve(load("one", tmp_path), Paths("/m", "/d", "/o")).overrides
    assert "actor_rollout_ref.actor.fsdp_config.use_torch_compile=true" in lines
