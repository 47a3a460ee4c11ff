"""The memory that the INT8 recipes name holds what docs/recipes.md counts, counted anew from the models' shapes.

Bytes a parameter: FSDP 16 on all devices (float32 weights, gradients and Adam's two); Megatron 6 on the devices that
share it (BF16 weights, float32 gradients) and 12 on all (float32 weights and Adam's two). A logit takes 10: once in
BF16, twice in float32.
"""

from pathlib import Path

import pytest

from launch.recipes import load, names

DOCS = Path(__file__).parents[2] / "docs"
GIB = 2**30
SHAPES = {  # layers, hidden, what a layer's attention writes and reads in all, MLP width, experts, vocabulary
    "Qwen/Qwen2.5-7B": (28, 3584, 2 * 3584 + 2 * 512, 18944, 1, 152064),
    "Qwen/Qwen2.5-32B": (64, 5120, 2 * 5120 + 2 * 1024, 27648, 1, 152064),
    "Qwen/Qwen3-30B-A3B": (48, 2048, 2 * 4096 + 2 * 512, 768, 128, 151936),
}
INT8 = [name for name in names() if "-int8-" in name]


def parameters(hub: str) -> tuple[float, float, int]:
    """Parameters outside of experts, those of experts, and the vocabulary; biases and norms are left out."""
    layers, hidden, attention, width, experts, vocabulary = SHAPES[hub]
    mlp = layers * 3 * hidden * width * experts
    others = layers * hidden * attention + 2 * hidden * vocabulary
    return (others, mlp, vocabulary) if experts > 1 else (others + mlp, 0, vocabulary)


def counted(name: str) -> tuple[float, float, float, float]:
    """GiB a device: the trainer's states, logits, the engine's share; and GiB a host of what waits there."""
    recipe = load(name)
    dense, experts, vocabulary = parameters(recipe.model.hub)
    whole, devices, tokens = dense + experts, recipe.devices, recipe.verl["actor_rollout_ref"]["actor"]
    logits = tokens["ppo_max_token_len_per_gpu"] * vocabulary * 10
    states = 16 * whole / devices
    if parallel := recipe.training.parallel:
        mine = dense / (parallel.tensor * parallel.pipeline) + experts / (parallel.expert * parallel.pipeline)
        states, logits = 6 * mine + 12 * whole / devices, logits / parallel.tensor
    replicas = devices // recipe.rollout.tensor_parallel
    kept = 2 * whole  # of one engine in BF16, the larger twin
    host = 12 * whole * recipe.training.offload + 4 * whole * recipe.training.reference_offload + replicas * kept
    engine = recipe.rollout.gpu_memory_utilization * recipe.memory.device
    return states / GIB, logits / GIB, engine, host / recipe.nodes / GIB


@pytest.mark.parametrize("name", INT8)
def test_the_memory_it_names_is_enough(name: str):
    recipe = load(name)
    states, logits, engine, host = counted(name)
    assert states + logits < 0.85 * recipe.memory.device, "training, with room for activations and gathered layers"
    assert engine + states * (not recipe.training.offload) < 0.9 * recipe.memory.device, "generating"
    assert host < 0.9 * recipe.memory.host


@pytest.mark.parametrize("page", ["recipes.md", "recipes.zh.md"])
def test_the_documents_have_these_numbers(page: str):
    lines = [line.strip("| ").split(" | ") for line in (DOCS / page).read_text().splitlines() if line.startswith("| ")]
    tables = {line[0].strip("`"): line[1:] for line in lines if line[0].startswith("`qwen")}
    assert tables == {name: [f"{number:.0f}" for number in counted(name)] for name in INT8}


def test_the_counted_parameters_are_the_models():
    """Against the numbers on their cards, in billions."""
    for hub, billions in (("Qwen/Qwen2.5-7B", 7.61), ("Qwen/Qwen2.5-32B", 32.5), ("Qwen/Qwen3-30B-A3B", 30.5)):
        dense, experts, _ = parameters(hub)
        assert (dense + experts) / 1e9 == pytest.approx(billions, rel=0.01)
