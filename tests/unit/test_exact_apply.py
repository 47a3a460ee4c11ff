"""What an exact trainer changes in a model of transformers, and what it refuses, by name."""

import copy

import pytest
import torch

pytest.importorskip("transformers", reason="its models are what computes here")
pytest.importorskip("vllm", reason="attention and routing are vLLM's")

from naming import line_naming
from torch import nn
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from ascend_quant.exact import NotExact, apply_exact
from ascend_quant.integrations.vllm.layers import register_products
from ascend_quant.kernels import engine_products
from ascend_quant.kernels.engine_products import NoProduct

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
EXPERTS = {"head_dim": 32, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
ATTENTION = tuple(f"self_attn.{name}_proj" for name in "qkvo")
MLP = tuple(f"mlp.{name}_proj" for name in ("gate", "up", "down"))


@pytest.fixture(autouse=True)
def products():
    register_products("cpu")


def dense(**more):
    torch.manual_seed(0)
    return Qwen2ForCausalLM(Qwen2Config(**{**SIZES, **more})).to(torch.bfloat16)


def mixture(**more):
    torch.manual_seed(0)
    config = Qwen3MoeConfig(**{**SIZES, **EXPERTS, "mlp_only_layers": [0], **more})
    return Qwen3MoeForCausalLM(config).to(torch.bfloat16)


def test_what_changes_and_what_stays():
    model = mixture()
    before, parameters = list(model.state_dict()), dict(model.named_parameters())
    applied = apply_exact(model, tensor_parallel=2)
    assert applied.quantized == [
        *(f"model.layers.0.{name}" for name in ATTENTION + MLP),
        *(f"model.layers.1.{name}" for name in (*ATTENTION, "mlp.experts")),
    ]
    assert applied.unquantized == ["lm_head"] and applied.in_engine.names == ()
    assert applied.others == 2 * 4 + 1 + 1 + 1 + 1, "norms of two layers and the last one, an MLP, a router, the angles"
    assert list(model.state_dict()) == before
    assert all(parameter is parameters[name] for name, parameter in model.named_parameters())
    cut = {name for name, module in model.named_modules() if getattr(module, "ranks", 1) == 2}
    assert cut == {
        *(f"model.layers.{i}.self_attn.o_proj" for i in range(2)),
        "model.layers.0.mlp.down_proj",
        "model.layers.1.mlp.experts",
    }


def other_norm(model):
    class Gemma3RMSNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.zeros(64)), 1e-6

        def forward(self, x):
            wide = x.float()
            row = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
            return (row * (1 + self.weight.float())).to(x.dtype)

    model.model.norm = Gemma3RMSNorm()


def other_linear(model):
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    model.model.layers[1].self_attn.o_proj = Doubled(64, 64)


def sigmoid_router(model):
    gate = model.model.layers[1].mlp.gate
    kind = type(gate)

    class Qwen3MoeTopKRouter(kind):
        def forward(self, hidden):
            logits, _, experts = super().forward(hidden)
            return logits, logits.sigmoid().gather(-1, experts), experts

    gate.__class__ = Qwen3MoeTopKRouter


def unknown_module(model):
    model.model.layers[0].mlp.noise = nn.Dropout(0.1)


def replaced_forward(model):
    norm = model.model.layers[1].input_layernorm
    norm.forward = norm.forward


REFUSED = {  # model, what is done to it, arguments, what the error names
    "family": (dense, lambda m: setattr(m.config, "model_type", "gemma3"), {}, ("gemma3", "qwen3_moe")),
    "ranks": (dense, None, {"tensor_parallel": 4}, ("tensor_parallel=4",)),
    "rope": (
        lambda: dense(rope_parameters={"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}),
        None,
        {},
        ("rope_type='linear'",),
    ),
    "dropout": (lambda: dense(attention_dropout=0.1), None, {}, ("attention_dropout=0.1",)),
    "window": (
        lambda: dense(use_sliding_window=True, sliding_window=4, max_window_layers=1),
        None,
        {},
        ("model.layers.1.self_attn", "sliding_window=4"),
    ),
    "activation": (lambda: dense(hidden_act="gelu"), None, {}, ("model.layers.0.mlp.act_fn", "GELUActivation")),
    "experts' activation": (
        lambda: mixture(hidden_act="gelu", mlp_only_layers=[]),
        None,
        {},
        ("model.layers.0.mlp.experts", "Qwen3MoeExperts"),
    ),
    "norm": (dense, other_norm, {}, ("model.norm", "Gemma3RMSNorm")),
    "linear": (dense, other_linear, {}, ("model.layers.1.self_attn.o_proj", "Doubled")),
    "router": (mixture, sigmoid_router, {}, ("model.layers.1.mlp.gate", "Qwen3MoeTopKRouter")),
    "module": (dense, unknown_module, {}, ("model.layers.0.mlp.noise", "Dropout")),
    "forward": (dense, replaced_forward, {}, ("model.layers.1.input_layernorm",)),
    "lora": (dense, lambda m: setattr(m, "peft_config", {}), {}, ("LoRA",)),
    "odd intermediate size": (
        lambda: dense(intermediate_size=97),
        None,
        {"tensor_parallel": 2},
        ("model.layers.0.mlp.down_proj", "97"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_and_the_model_stays(case):
    make, change, arguments, named = REFUSED[case]
    model = make()
    if change is not None:
        change(model)
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(NotExact, match=line_naming(*named)):
        apply_exact(model, **arguments)
    assert [type(module) for module in model.modules()] == kinds


def test_twice_is_refused():
    model = dense()
    apply_exact(model)
    with pytest.raises(NotExact, match=r"model\.layers\.0"):
        apply_exact(model)


def test_without_an_engines_adapter_it_is_told_at_once(monkeypatch):
    monkeypatch.setattr(engine_products, "_products", {})
    with pytest.raises(NoProduct, match="attention"):
        apply_exact(dense())


def test_a_copy_computes_as_the_model_does():
    model = dense()
    apply_exact(model)
    ids = torch.arange(24).view(2, 12)
    with torch.no_grad():
        assert torch.equal(copy.deepcopy(model)(ids).logits, model(ids).logits)
