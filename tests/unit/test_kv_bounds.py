"""Bounds of q, k and v from weights alone: never below what a model computes in float64, nor absurdly above it."""

import pytest
import torch
from kv_cases import largest

pytest.importorskip("transformers", reason="its models are the reference")

import transformers

from ascend_quant.kv_cache.bounds import NORM_BEFORE_ATTENTION, Bounds

SIZES = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 100, "head_dim": 16}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS = {
    "llama": (transformers.LlamaConfig, HEADS),
    "mistral": (transformers.MistralConfig, HEADS),
    "qwen2": (transformers.Qwen2Config, HEADS),
    "qwen2_moe": (transformers.Qwen2MoeConfig, {**HEADS, **EXPERTS, "shared_expert_intermediate_size": 32}),
    "qwen3": (transformers.Qwen3Config, HEADS),
    "qwen3_moe": (transformers.Qwen3MoeConfig, {**HEADS, **EXPERTS}),
}


def made(kind: str, **more) -> torch.nn.Module:
    config, settings = CONFIGS[kind]
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config(**SIZES, **settings, **more)).bfloat16()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("norm.weight"):
                parameter.uniform_(0.2, 2)
                parameter[3] = 9  # a channel that stands out
            if name.endswith("bias"):
                parameter.normal_(0, 2)
    return model


def bounds_of(model: torch.nn.Module, gain: float = 1.0) -> dict[str, list[float]]:
    """Through one buffer, which the next tensor overwrites, in an order of no meaning."""
    bounds, buffer = Bounds(gain), torch.empty(1 << 16, dtype=torch.bfloat16)
    bounds.begin()
    for name, tensor in sorted(model.state_dict().items(), key=lambda pair: hash(pair[0])):
        view = buffer[: tensor.numel()].view(tensor.shape)
        bounds.take(name, view.copy_(tensor))
        buffer.fill_(float("nan"))
    names = [name for name, _ in model.named_modules() if name.endswith("self_attn")]
    return {name: bounds.of(name.removeprefix("model.")).tolist() for name in names}


def worst_inputs(model: torch.nn.Module) -> None:
    """Embeddings along rows of the first layer's projections: what comes closest to its bounds."""
    layer, embedding = model.model.layers[0], model.get_input_embeddings().weight
    with torch.no_grad():
        rows = torch.cat([getattr(layer.self_attn, f"{kind}_proj").weight for kind in "qkv"])
        signs = torch.cat([torch.ones(len(rows)), -torch.ones(len(rows))]).unsqueeze(1)
        rows = torch.cat([rows, rows]) * signs
        embedding.copy_(rows[torch.linspace(0, len(rows) - 1, len(embedding)).long()] * layer.input_layernorm.weight)


@pytest.mark.parametrize("inputs", ["random", "worst"])
@pytest.mark.parametrize("kind", NORM_BEFORE_ATTENTION)
def test_nothing_exceeds_them_and_they_are_not_absurd(kind, inputs):
    model = made(kind)
    if inputs == "worst":
        worst_inputs(model)
    torch.manual_seed(1)
    seen = largest(model, [torch.arange(100).unsqueeze(0), torch.randint(0, 100, (1, 200))])
    found = bounds_of(model)
    assert found.keys() == seen.keys() and len(seen) == 2
    for name, values in seen.items():
        for bound, (value,) in zip(found[name], values, strict=True):
            assert value <= bound < 60 * value, (name, bound / value)


def test_yarn_lengthens_what_it_rotates():
    rope = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 10000.0, "original_max_position_embeddings": 64}
    model = made("qwen3", rope_parameters=rope)
    gain = model.model.rotary_emb.attention_scaling
    assert gain > 1.1
    plain, longer = bounds_of(model), bounds_of(model, gain)
    for name in plain:
        assert longer[name] == pytest.approx([plain[name][0] * gain, plain[name][1] * gain, plain[name][2]])
    seen = largest(model, [torch.arange(100).unsqueeze(0)])
    assert all(value <= bound for name in seen for (value,), bound in zip(seen[name], longer[name], strict=True))


@pytest.mark.parametrize("absent", ["input_layernorm.weight", "self_attn.v_proj.weight", "self_attn.k_proj.weight"])
def test_none_is_known_without_all_that_it_needs(absent):
    model, bounds = made("qwen2"), Bounds()
    bounds.begin()
    for name, tensor in model.state_dict().items():
        if name != f"model.layers.1.{absent}":
            bounds.take(name, tensor)
    assert bounds.of("layers.0.self_attn") is not None
    assert bounds.of("layers.1.self_attn") is None and bounds.of("layers.2.self_attn") is None
    assert bounds.of("layers.0.cross_attn") is None
    bounds.begin()
    assert bounds.of("layers.0.self_attn") is None
