"""vLLM's layers with vllm-ascend's own int8 methods on npu:0: the baseline for this project's code."""

import pytest
import torch
import torch_npu

from npu_host import checkpoint, formats, models, recorder, vllm_engine

pytestmark = pytest.mark.each_version

LINEAR = {f"model.{name}_proj.weight": "W8A8_DYNAMIC" for name in ("o", "gate", "up", "down")}
MOE = {
    f"model.experts.{expert}.{name}_proj.weight": "W8A8_DYNAMIC"
    for expert in range(models.EXPERTS)
    for name in ("gate", "up", "down")
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    with vllm_engine.running(tmp_path_factory.mktemp("engine"), models.MOE) as config:
        yield config


@pytest.fixture
def quantization(config):
    found = vllm_engine.modelslim_config()({**LINEAR, **MOE, "model.experts.weight": "W8A8_DYNAMIC"})
    found.packed_modules_mapping = {"gate_up_proj": ["gate_proj", "up_proj"]}  # as vLLM takes it from a model's class
    return found


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, dtype=torch.float32, device="cpu")


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = weight.abs().amax(-1, keepdim=True) / 127
    return (weight / scale).round().to(torch.int8), scale


def relative_error(result: torch.Tensor, expected: torch.Tensor) -> float:
    return ((result.cpu().double() - expected).norm() / expected.norm()).item()


def test_the_platform_is_vllm_ascends(config):
    from vllm.platforms import current_platform

    assert type(current_platform).__module__ == "vllm_ascend.platform" and current_platform.device_type == "npu"


@pytest.mark.parametrize("kind", ["ReplicatedLinear", "ColumnParallelLinear", "RowParallelLinear", "Merged"])
def test_linear_layers(kind, quantization):
    from vllm.model_executor.layers import linear

    if kind == "Merged":
        layer = linear.MergedColumnParallelLinear(
            64, [48, 48], bias=False, quant_config=quantization, prefix="model.gate_up_proj"
        )
    else:
        layer = getattr(linear, kind)(64, 96, bias=False, quant_config=quantization, prefix="model.o_proj")
    weight, x = normal(96, 64), normal(5, 64).bfloat16()
    codes, scale = quantized(weight)
    layer.weight.data.copy_(codes)
    layer.weight_scale.data.copy_(scale)
    layer.weight_offset.data.zero_()
    layer.quant_method.process_weights_after_loading(layer)
    assert type(layer).__module__.startswith("vllm_ascend.") and layer.weight.shape == (64, 96)
    assert torch_npu.get_npu_format(layer.weight) == formats.NZ
    assert relative_error(layer(x.npu())[0], x.double() @ weight.double().T) < 0.02
    with pytest.raises(formats.FormatError):  # a second time would transpose the weight again
        layer.quant_method.process_weights_after_loading(layer)


def test_a_mixture_of_experts(config, quantization):
    from vllm.model_executor.layers import fused_moe

    make = getattr(fused_moe, "FusedMoEFactory", None) or fused_moe.FusedMoE  # vLLM 0.30 has a function
    hidden, inner, experts = models.HIDDEN, models.INTERMEDIATE, models.EXPERTS
    layer = make(
        num_experts=experts,
        top_k=models.EXPERTS_A_TOKEN,
        hidden_size=hidden,
        intermediate_size=inner,
        renormalize=True,
        quant_config=quantization,
        prefix="model.experts",
    )
    weights = checkpoint.with_weights(layer)
    w13, w2 = normal(experts, 2 * inner, hidden) / 8, normal(experts, hidden, inner) / 8
    for name, weight in (("w13", w13), ("w2", w2)):
        codes, scale = quantized(weight)
        getattr(weights, f"{name}_weight").data.copy_(codes)
        getattr(weights, f"{name}_weight_scale").data.copy_(scale)
        getattr(weights, f"{name}_weight_offset").data.zero_()
    weights.quant_method.process_weights_after_loading(weights)
    assert torch_npu.get_npu_format(weights.w13_weight) == formats.NZ
    x, logits = normal(9, hidden).bfloat16(), normal(9, experts).bfloat16()
    with vllm_engine.forward(config, tokens=9):
        result = layer(x.npu(), logits.npu())
    assert relative_error(result, expected_experts(x, logits, w13, w2)) < 0.04
    called = {call.operator for call in recorder.calls.values() if call.caller.startswith("vllm_ascend.")}
    assert {"npu::npu_moe_init_routing_v2", "npu::npu_grouped_matmul", "npu::npu_moe_token_unpermute"} <= called


def expected_experts(x, logits, w13, w2) -> torch.Tensor:
    """The unquantized mixture in float64, token by token."""
    weight, expert = logits.double().softmax(-1).topk(models.EXPERTS_A_TOKEN)
    weight = weight / weight.sum(-1, keepdim=True)
    result = torch.zeros(x.shape, dtype=torch.float64, device="cpu")
    for token, row in enumerate(x.double()):
        for w, e in zip(weight[token], expert[token], strict=True):
            gate, up = (w13[e].double() @ row).chunk(2)
            result[token] += w * (w2[e].double() @ (torch.nn.functional.silu(gate) * up))
    return result
