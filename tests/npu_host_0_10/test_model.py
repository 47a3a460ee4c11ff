"""Whole models, built by vllm-ascend 0.10 from our config on npu:0: loads are refits, bit by bit the oracle's."""

import pytest
import torch
import torch_npu
from torch import nn

from ascend_quant import oracle
from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import RefitError
from npu_host_0_10 import checkpoint, engine


@pytest.fixture(scope="module", params=list(engine.CONFIGS))
def built(request, tmp_path_factory):
    """Whether it has experts, the model, vLLM's configuration."""
    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with engine.running(tmp_path_factory.mktemp("engine"), request.param) as config:
        config.quant_config = NpuQuantConfig()
        model = base_loader.initialize_model(vllm_config=config, model_config=config.model_config)
        yield "Moe" in request.param, model, config


def tensors_of(model: nn.Module) -> dict[str, tuple[int, int]]:
    """Addresses and formats of parameters and of the scales that are plain attributes."""
    found = dict(model.named_parameters())
    for name, module in model.named_modules():
        found |= {f"{name}.{key}": value for key, value in vars(module).items() if key.endswith("_fp32")}
    return {name: (tensor.data_ptr(), torch_npu.get_npu_format(tensor.data)) for name, tensor in found.items()}


def load(model: nn.Module, state: dict[str, torch.Tensor]) -> None:
    """In buckets, in another order than the model's."""
    pairs = [(name, tensor.npu()) for name, tensor in state.items()]
    with plugin.refit_of(model).session():
        for part in (pairs[10:], pairs[:4], pairs[4:10]):
            model.load_weights(part)


def test_it_is_vllm_ascends_model(built):
    _, model, _ = built
    assert type(model).__module__.startswith("vllm_ascend.models.qwen3")


def test_three_refits_are_the_oracles(built):
    moe, model, _ = built
    refit, before = plugin.refit_of(model), tensors_of(model)
    for seed in range(3):
        state = checkpoint.state_of(moe, seed)
        load(model, state)
        for module in model.modules():  # as vLLM does after loading, and verl after every sync
            if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading"):
                module.quant_method.process_weights_after_loading(module)
        held = checkpoint.held(moe, model)
        for name, pair in checkpoint.expected(moe, state).items():
            assert all(map(torch.equal, held[name], pair)), name
        plain = dict(model.named_parameters())["model.norm.weight"].data.cpu()
        assert torch.equal(plain, state["model.norm.weight"])
        assert tensors_of(model) == before and refit.last_receipt.digest == refit.digest()
        assert refit.last_receipt.tensors == len(state)


def test_the_mlp_computes_with_the_new_weights(built):
    moe, model, config = built
    x_MK = torch.randn(5, engine.HIDDEN, device="cpu", dtype=torch.float32).bfloat16()
    results = []
    for seed in (3, 4):
        state = checkpoint.state_of(moe, seed)
        load(model, state)
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
        weight_MT, expert_MT = logits_ME.softmax(-1).topk(engine.EXPERTS_A_TOKEN)
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
    load(model, state)
    x_MK = torch.randn(3, 2 * checkpoint.HEAD, device="cpu", dtype=torch.float32).bfloat16()
    codes, scale = checkpoint.expected(moe, state)["o"]
    with torch.inference_mode():
        found = model.model.layers[0].self_attn.o_proj(x_MK.npu())[0].cpu()
    with torch.device("cpu"):
        assert torch.equal(found, oracle.matmul(x_MK, codes, scale).bfloat16())


def test_a_bad_tensor_is_named_and_the_next_refit_heals(built):
    moe, model, _ = built
    refit, state = plugin.refit_of(model), checkpoint.state_of(moe, 7)
    name = f"{checkpoint.mlps(moe)[-1]}.up_proj.weight"
    broken = {**state, name: state[name].clone().fill_(float("nan"))}
    with pytest.raises(RefitError, match=rf"{name}.*NaN"):
        model.load_weights([(key, tensor.npu()) for key, tensor in broken.items()])
    assert refit.why_not_servable()
    model.load_weights([(key, tensor.npu()) for key, tensor in state.items()])
    assert refit.why_not_servable() is None and refit.digest() == refit.last_receipt.digest
