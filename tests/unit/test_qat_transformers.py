"""Fake quantization of transformers' models: dense and mixture of experts, with every forward that experts have."""

import copy

import pytest
import torch
from qat_cases import engine_weight

pytest.importorskip("transformers", reason="its models are what is quantized here")

from transformers import GptOssConfig, Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

from ascend_quant import qat

SCHEME = "int4_g32"
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "mlp_only_layers": [0]}
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))
IDS = torch.arange(24).view(2, 12)


def pair(model):
    """Return the model, and a copy with the weights that the engine computes with."""
    reference = copy.deepcopy(model)
    for key, w in reference.named_parameters():
        if w.dim() > 1 and not any(part in key for part in ("embed_tokens", "lm_head", "mlp.gate.")):
            w.data.copy_(engine_weight(w, SCHEME))
    return model, reference


def run(model):
    logits = model(IDS).logits
    logits.float().square().mean().backward()
    return logits, {key: w.grad for key, w in model.named_parameters()}


def layers(first, second):
    return [f"model.layers.{i}.{name}" for i, names in enumerate((first, second)) for name in names]


@pytest.mark.parametrize("tied", [False, True])
def test_a_dense_model(tied):
    torch.manual_seed(0)
    model, reference = pair(Qwen3ForCausalLM(Qwen3Config(**SIZES, tie_word_embeddings=tied)))
    applied = qat.apply_fake_quantization(model, SCHEME)
    assert applied.quantized == layers(ATTENTION + MLP, ATTENTION + MLP) and applied.unquantized == ["lm_head"]
    (logits, found), (expected_logits, expected) = run(model), run(reference)
    assert torch.equal(logits, expected_logits)
    assert list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in found)


@pytest.mark.parametrize("forward", ["eager", "batched_mm", "grouped_mm"])
def test_a_mixture_of_experts(forward):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**SIZES, **EXPERTS)
    model, reference = pair(Qwen3MoeForCausalLM(config).to(torch.bfloat16))
    names = list(model.state_dict())
    for one in (model, reference):
        one.set_experts_implementation(forward)
    applied = qat.apply_fake_quantization(model, SCHEME)
    assert applied.quantized == layers(ATTENTION + MLP, (*ATTENTION, "mlp.experts"))
    assert list(model.state_dict()) == names
    if forward == "batched_mm":  # for inference: transformers 5.9 changes the indices that its gradients need
        with torch.no_grad():
            assert torch.equal(model(IDS).logits, reference(IDS).logits)
        return
    (logits, found), (expected_logits, expected) = run(model), run(reference)
    assert torch.equal(logits, expected_logits)
    assert all(torch.equal(found[key], expected[key]) for key in found if found[key] is not None)
    assert found["model.layers.1.mlp.experts.gate_up_proj"].any()


def test_experts_with_transposed_weights():
    torch.manual_seed(0)
    experts = GptOssExperts(GptOssConfig(hidden_size=64, intermediate_size=64, num_local_experts=2))
    for w in experts.parameters():
        torch.nn.init.normal_(w)
    reference = copy.deepcopy(experts)
    for w in (reference.gate_up_proj, reference.down_proj):
        w.data.copy_(engine_weight(w.transpose(1, 2), SCHEME).transpose(1, 2))
    qat.apply_fake_quantization(torch.nn.ModuleDict({"experts": experts}), SCHEME)
    inputs = torch.randn(5, 64), torch.tensor([[0, 1]] * 5), torch.full((5, 2), 0.5)
    experts.config._experts_implementation = "eager"
    found, expected = experts(*inputs), reference(*inputs)
    assert torch.equal(found, expected)
    found.sum().backward(), expected.sum().backward()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(experts.parameters(), reference.parameters(), strict=True))
