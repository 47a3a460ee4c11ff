"""Megatron's layers by the names that their model's checkpoint and its rollout engine have for them.

So that one list of layers to be ignored serves trainer and engine. A fused layer has several; experts, whichever class
holds them, have the engine's name for all of them.
"""

import re
from collections.abc import Iterator, Sequence

from torch import nn

# the part of a name within its layer -> in the checkpoint, as megatron-core's bridges pair them
PARTS = {
    r"self_attention\.linear_qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    r"self_attention\.linear_q_proj": ("self_attn.q_proj",),
    r"self_attention\.linear_q_down_proj": ("self_attn.q_a_proj",),
    r"self_attention\.linear_q_up_proj": ("self_attn.q_b_proj",),
    r"self_attention\.linear_kv_down_proj": ("self_attn.kv_a_proj_with_mqa",),
    r"self_attention\.linear_kv_up_proj": ("self_attn.kv_b_proj",),
    r"self_attention\.linear_proj": ("self_attn.o_proj",),
    r"mlp\.experts(\..*)?": ("mlp.experts",),
    r"mlp\.(shared_experts\.)?linear_fc1": (r"mlp.\g<1>gate_proj", r"mlp.\g<1>up_proj"),
    r"mlp\.(shared_experts\.)?linear_fc2": (r"mlp.\g<1>down_proj",),
}


def checkpoint_names(models: Sequence[nn.Module]) -> dict[nn.Module, list[str]]:
    """The names of the modules in decoder layers, "model.layers.N..." with N as the whole model counts, from 0."""
    return {
        module: names
        for model in models
        for name, layer in model.named_modules()
        if re.fullmatch(r"(.*\.)?decoder\.layers\.\d+", name)
        for part, module in layer.named_modules()
        if (names := [f"model.layers.{layer.layer_number - 1}.{one}" for one in _renamed(part)])
    }


def _renamed(part: str) -> Iterator[str]:
    for pattern, names in PARTS.items():
        if found := re.fullmatch(pattern, part):
            yield from (found.expand(name) for name in names)
