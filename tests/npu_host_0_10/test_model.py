"""Whole models, built by vllm-ascend 0.10 from our config on npu:0, and what their layers compute."""

import pytest
import torch
from npu_host import checkpoint, models, whole_model

from ascend_quant import oracle
from npu_host_0_10 import engine


@pytest.fixture(scope="module", params=list(models.CONFIGS))
def built(request, tmp_path_factory):
    """Whether it has experts, the model, vLLM's configuration."""
    with whole_model.built(engine.running, tmp_path_factory.mktemp("engine"), request.param) as found:
        yield found


def test_it_is_vllm_ascends_model(built):
    _, model, _ = built
    assert type(model).__module__.startswith("vllm_ascend.models.qwen3")


def test_three_refits_are_the_oracles(built):
    moe, model, _ = built
    whole_model.three_refits_are_the_oracles(moe, model)


def test_the_mlp_computes_with_the_new_weights(built):
    moe, model, config = built
    x_MK = torch.randn(5, models.HIDDEN, device="cpu", dtype=torch.float32).bfloat16()
    results = []
    for seed in (3, 4):
        state = checkpoint.state_of(moe, seed)
        whole_model.load(model, state)
        with engine.forward(config, tokens=5):
            result = model.model.layers[0].mlp(x_MK.npu()).cpu().double()
        wanted = floating_mlp(moe, state, x_MK.double())
        assert (result - wanted).norm() / wanted.norm() < 0.04
        results.append(result)
    assert not torch.equal(*results)


def floating_mlp(moe: bool, state: dict[str, torch.Tensor], x_MK: torch.Tensor) -> torch.Tensor:
    """The unquantized layer in float64, token by token."""
    weight_MT, expert_MT = torch.ones(len(x_MK), 1, device="cpu"), torch.zeros(len(x_MK), 1, device="cpu").long()
    if moe:
        logits_ME = (x_MK @ state[f"{checkpoint.LAYER}.mlp.gate.weight"].double().T).bfloat16().double()
        weight_MT, expert_MT = logits_ME.softmax(-1).topk(models.EXPERTS_A_TOKEN)
        weight_MT = weight_MT / weight_MT.sum(-1, keepdim=True)
    result = torch.zeros_like(x_MK)
    for token, row in enumerate(x_MK):
        for weight, expert in zip(weight_MT[token], expert_MT[token], strict=True):
            layer = checkpoint.mlps(moe)[expert]
            gate, up, down = (state[f"{layer}.{name}_proj.weight"].double() for name in ("gate", "up", "down"))
            result[token] += weight * (down @ (torch.nn.functional.silu(gate @ row) * (up @ row)))
    return result


def test_a_linear_layer_is_the_oracles_product(built):
    moe, model, _ = built
    state = checkpoint.state_of(moe, 5)
    whole_model.load(model, state)
    x_MK = torch.randn(3, 2 * models.HEAD, device="cpu", dtype=torch.float32).bfloat16()
    codes, scale = checkpoint.expected(moe, state)["o"]
    with torch.inference_mode():
        found = model.model.layers[0].self_attn.o_proj(x_MK.npu())[0].cpu()
    with torch.device("cpu"):
        assert torch.equal(found, oracle.matmul(x_MK, codes, scale).bfloat16())


def test_a_bad_tensor_is_named_and_the_next_refit_heals(built):
    moe, model, _ = built
    whole_model.a_bad_tensor_is_named_and_the_next_refit_heals(moe, model)
