"""A whole vLLM model, built by vllm-ascend from our config on npu:0: loads are refits, bit by bit the oracle's."""

from collections.abc import Iterator

import pytest
import torch
import torch_npu
from torch import nn

from ascend_quant import oracle
from ascend_quant.integrations import vllm as plugin
from ascend_quant.integrations.vllm.lying import lying_of
from ascend_quant.refit import RefitError
from npu_host import vllm_engine

LAYER = "model.layers.0"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Iterator[nn.Module]:
    """Qwen3-MoE of one layer."""
    plugin.register()
    from vllm.model_executor.model_loader import base_loader

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    with vllm_engine.running(tmp_path_factory.mktemp("engine")) as config:
        config.quant_config = NpuQuantConfig()
        yield base_loader.initialize_model(vllm_config=config, model_config=config.model_config)


def state_of(seed: int) -> dict[str, torch.Tensor]:
    """A checkpoint of its shapes, on the host."""
    hidden, head = vllm_engine.HIDDEN, 32
    shapes = {
        "model.embed_tokens": (128, hidden),
        "lm_head": (128, hidden),
        "model.norm": (hidden,),
        f"{LAYER}.input_layernorm": (hidden,),
        f"{LAYER}.post_attention_layernorm": (hidden,),
        f"{LAYER}.self_attn.q_proj": (2 * head, hidden),
        f"{LAYER}.self_attn.k_proj": (head, hidden),
        f"{LAYER}.self_attn.v_proj": (head, hidden),
        f"{LAYER}.self_attn.o_proj": (hidden, 2 * head),
        f"{LAYER}.self_attn.q_norm": (head,),
        f"{LAYER}.self_attn.k_norm": (head,),
        f"{LAYER}.mlp.gate": (vllm_engine.EXPERTS, hidden),
    }
    for expert in range(vllm_engine.EXPERTS):
        for name in ("gate", "up", "down"):
            shapes[f"{LAYER}.mlp.experts.{expert}.{name}_proj"] = (hidden, hidden)
    generator = torch.Generator("cpu").manual_seed(seed)
    return {
        f"{name}.weight": torch.randn(shape, generator=generator, device="cpu", dtype=torch.float32).bfloat16()
        for name, shape in shapes.items()
    }


def expected_rows(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """BF16 rows (N, K) of each int8 parameter, put together by the checkpoint's rules."""
    experts = [
        [state[f"{LAYER}.mlp.experts.{expert}.{name}_proj.weight"] for name in ("gate", "up", "down")]
        for expert in range(vllm_engine.EXPERTS)
    ]
    return {
        "self_attn.qkv_proj": torch.cat([state[f"{LAYER}.self_attn.{name}_proj.weight"] for name in "qkv"]),
        "self_attn.o_proj": state[f"{LAYER}.self_attn.o_proj.weight"],
        "w13_weight": torch.cat([matrix for gate, up, _ in experts for matrix in (gate, up)]),
        "w2_weight": torch.cat([down for _, _, down in experts]),
    }


def held_rows(model: nn.Module) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """Codes (N, K) and scales (N) of the same."""
    layer = model.model.layers[0]
    attention, experts = layer.self_attn, lying_of(layer.mlp.experts)
    held = {f"self_attn.{name}": lying_of(getattr(attention, name))["weight"] for name in ("qkv_proj", "o_proj")}
    held |= {name: experts[name] for name in ("w13_weight", "w2_weight")}
    return {name: (one.place[:].cpu(), one.scale.cpu().view(-1)) for name, one in held.items()}


def addresses(model: nn.Module) -> dict[str, tuple[int, int]]:
    return {name: (p.data_ptr(), torch_npu.get_npu_format(p.data)) for name, p in model.named_parameters()}


def test_three_refits_are_the_oracles(model):
    refit, before = plugin.refit_of(model), addresses(model)
    for seed in range(3):
        state = state_of(seed)
        pairs = [(name, tensor.npu()) for name, tensor in state.items()]
        with refit.session():  # in buckets, in another order than the model's
            for part in (pairs[10:], pairs[:4], pairs[4:10]):
                model.load_weights(part)
        for module in model.modules():
            if hasattr(getattr(module, "quant_method", None), "process_weights_after_loading"):
                module.quant_method.process_weights_after_loading(module)
        for name, rows_NK in expected_rows(state).items():
            codes, scale = oracle.quantize_weight(rows_NK)
            assert torch.equal(held_rows(model)[name][0], codes) and torch.equal(held_rows(model)[name][1], scale), name
        plain = dict(model.named_parameters())["model.norm.weight"].data.cpu()
        assert torch.equal(plain, state["model.norm.weight"])
        assert addresses(model) == before and refit.last_receipt.digest == refit.digest()
        assert refit.last_receipt.tensors == len(state)


def test_a_bad_tensor_is_named_and_the_next_refit_heals(model):
    refit = plugin.refit_of(model)
    state = state_of(7)
    name = f"{LAYER}.mlp.experts.2.up_proj.weight"
    broken = {**state, name: state[name].clone().fill_(float("nan"))}
    with pytest.raises(RefitError, match=rf"{name}.*NaN"):
        model.load_weights([(key, tensor.npu()) for key, tensor in broken.items()])
    assert refit.why_not_servable()
    model.load_weights([(key, tensor.npu()) for key, tensor in state.items()])
    assert refit.why_not_servable() is None and refit.digest() == refit.last_receipt.digest
