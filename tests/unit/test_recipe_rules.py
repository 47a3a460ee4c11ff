"""Combinations that cannot work are errors that say why and what to write instead."""

from pathlib import Path

import pytest
from naming import has_line_naming
from test_recipe_files import ACTOR, ROLLOUT, error, write

from launch.recipes import load

OPTIONS = f"{ROLLOUT}.engine_kwargs.vllm.hf_overrides.quantization_config"
QAT = f"{ROLLOUT}.engine_kwargs.ascend_quant.qat"
RANKS = f"{ROLLOUT}.tensor_model_parallel_size"
MEGATRON = f"{ACTOR}.megatron"
GATHERED = f"{MEGATRON}.override_ddp_config.fp8_param_gather=true"
SCHEMES = [  # what a stack does not serve, and where trainer and engine would see different weights
    (["stack=ascend-cann8.5", "scheme=fp8_block"], "scheme: fp8_block … ascend-cann8.5"),
    (["stack=ascend-cann9.1", "scheme=int4_g128"], "scheme: int4_g128 … ascend-cann9.1"),
    (["stack=ascend-cann9.1", "precision=fp8"], "precision: fp8 … ascend-cann9.1"),
    (["backend=fsdp2", "precision=fp8"], "override_transformer_config.fp8: … megatron"),
    (["precision=fp8", GATHERED, "optimizer=cpu"], "fp8_param_gather: true … optimizer_cpu_offload … FusedAdam"),
    (["precision=fp8", f"{QAT}=int4_g128"], "qat: int4_g128 … fp8"),
]
CACHES = [
    (["stack=ascend-cann8.5", "kv=int8"], "kv: int8 … ascend-cann8.5 … kv=auto"),
    (["stack=ascend-cann9.1", "kv=fp8"], "kv: fp8 … ascend-cann9.1"),
    (["stack=cpu", "kv=int8"], "kv: int8 … cpu"),
]
SENDING = [
    (["stack=ascend-cann8.5", "send=int8"], "send: int8 … ascend-cann8.5"),
    (["stack=ascend-cann8.5", f"{QAT}=int4_g128"], "qat: int4_g128 … ascend-cann8.5"),
]
ROUTES = f"{ROLLOUT}.enable_rollout_routing_replay=true"
REPLAY = [
    ([ROUTES, "backend=fsdp2"], "enable_rollout_routing_replay … fsdp2 … megatron"),
    ([ROUTES, "stack=ascend-cann9.1"], "enable_rollout_routing_replay … ascend-cann9.1"),
]
USELESS = [  # settings that do nothing, or harm
    (["actor_rollout_ref.model.path=/m"], "model.path … --model"),
    (["data.val_files=/v"], "data.val_files … --data … recipe.data.validation"),
    (["actor_rollout_ref.ref.fsdp_config.model_dtype=bf16"], "rotary"),
    ([f"{ACTOR}.use_torch_compile=false"], "actor.fsdp_config.use_torch_compile"),
]
APART = ["placement=apart", "trainer.n_gpus_per_node=6", f"{ROLLOUT}.n_gpus_per_node=2"]
DEVICES = [
    ([f"{RANKS}=3"], f"{RANKS}: 8 devices … 3"),
    ([*APART, f"{ROLLOUT}.n_gpus_per_node=3"], f"{RANKS}: 3 devices … 2"),
    (["backend=fsdp2", f"{MEGATRON}.tensor_model_parallel_size=2"], f"{MEGATRON}.tensor_model_parallel_size: … fsdp2"),
    (["backend=fsdp2", "optimizer=cpu"], "optimizer_cpu_offload: … fsdp2"),
    ([f"{ACTOR}.ulysses_sequence_parallel_size=2"], "ulysses_sequence_parallel_size: 2 … fsdp2 … megatron"),
    ([*APART, "trainer.n_gpus_per_node=0"], "trainer.n_gpus_per_node: 0"),
    ([*APART, "data.train_batch_size=300"], "train_batch_size … ppo_mini_batch_size: 300, 256"),
]


@pytest.mark.parametrize("changes, said", [*SCHEMES, *CACHES, *SENDING, *REPLAY, *USELESS, *DEVICES])
def test_what_cannot_work_is_refused(tmp_path: Path, changes: list[str], said: str):
    assert has_line_naming(error(tmp_path, *changes), said)


@pytest.mark.parametrize(
    "changes, tokens",
    [
        (["backend=fsdp2"], 48),
        (["backend=fsdp2", f"{ACTOR}.ulysses_sequence_parallel_size=4"], 12),
        ([f"{MEGATRON}.context_parallel_size=2"], 24),
    ],
)
def test_the_longest_sequence_fits_a_micro_batch(tmp_path: Path, changes: list[str], tokens: int):
    """16 + 32 tokens, among the devices that share a sequence."""
    key, dynamic = f"{ACTOR}.ppo_max_token_len_per_gpu", f"{ACTOR}.use_dynamic_bsz=true"
    load(write(tmp_path), [*changes, dynamic, f"{key}={tokens}"])
    message = error(tmp_path, *changes, dynamic, f"{key}={tokens - 1}")
    assert has_line_naming(message, f"{key}: {tokens - 1} … {tokens}")


def test_what_a_stacks_verl_lacks_is_said(tmp_path: Path):
    sampling = [f"algorithm.filter_groups.{one}" for one in ("enable=true", "metric=acc")]
    message = error(tmp_path, "stack=ascend-cann8.5", *sampling)
    assert "algorithm.filter_groups.enable=false" in message and len(message.splitlines()) == 1
    load(write(tmp_path), ["stack=ascend-cann8.5", *sampling, "algorithm.filter_groups.enable=false"])  # as it says
    load(write(tmp_path), ["stack=ascend-cann9.1", *sampling])


@pytest.mark.parametrize("change", ["kv=int8", "send=int8", f"{OPTIONS}.ignore=[lm_head]"])
def test_settings_of_an_engine_that_is_not_ours(tmp_path: Path, change: str):
    """BF16 on NPUs is vllm-ascend's own engine."""
    assert "ascend-cann9.1" in error(tmp_path, "stack=ascend-cann9.1", "scheme=bf16", change)
    load(write(tmp_path), ["stack=cuda13", "scheme=bf16", change])


def test_what_an_exact_engine_and_trainer_cannot_be(tmp_path: Path):
    """The recipe's own QAT wins over that of the group; the older verl reads none at all."""
    exact = ["correction=exact", "backend=fsdp2"]
    assert load(write(tmp_path), exact).is_exact
    other = error(tmp_path, *exact, "scheme=int4_g128", f"{QAT}=int4_g128")
    assert has_line_naming(other, "correction: exact", "int4_g128")
    assert has_line_naming(error(tmp_path, *exact, "stack=ascend-cann9.1"), "int8_exact … ascend-cann9.1 … NPUs")
    assert len(error(tmp_path, *exact, "stack=ascend-cann8.5").splitlines()) == 2
