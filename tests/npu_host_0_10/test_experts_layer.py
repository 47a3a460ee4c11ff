"""vLLM's own layer of experts, which vllm-ascend 0.10 has a class for: models such as Qwen2-MoE are made of it."""

import pytest
import torch
from npu_host import models
from npu_host.rules import RuleBroken
from torch import nn

from ascend_quant.engine.layout import layouts_of
from ascend_quant.integrations import vllm as plugin
from ascend_quant.refit import Refit, RefitError
from ascend_quant.refit.resident import QuantizedWeight
from npu_host_0_10 import engine


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    plugin.register()
    with engine.running(tmp_path_factory.mktemp("engine"), "Qwen3MoeForCausalLM") as config:
        yield config


def layer_of(prefix: str) -> nn.Module:
    from vllm.model_executor.layers.fused_moe.layer import FusedMoE

    from ascend_quant.integrations.vllm_ascend.config import NpuQuantConfig

    return FusedMoE(
        num_experts=models.EXPERTS,
        top_k=models.EXPERTS_A_TOKEN,
        hidden_size=models.HIDDEN,
        intermediate_size=models.INTERMEDIATE,
        renormalize=True,
        quant_config=NpuQuantConfig(),
        prefix=prefix,
    )


def refit(layer: nn.Module) -> dict[str, torch.Tensor]:
    """Random weights (E, N, K), written as a refit writes them."""
    residents = [
        QuantizedWeight(name, one.stand_in.data, one.scale, one.stand_in.shape[-1], (), one.weight_layout, one.copies)
        for name, one in layouts_of(layer).items()
    ]
    written, state = {}, Refit(residents)
    with state.session():
        for resident in residents:
            w_ENK = (torch.randn(resident.data.shape, dtype=torch.float32, device="cpu") / 8).bfloat16()
            slot = state.batch.new_sources([(resident.name, w_ENK.numel())])
            state.write(slot, resident, resident.data, w_ENK.npu())
            written[resident.name] = w_ENK.double()
    return written


def test_it_computes_with_refitted_weights(config):
    layer = layer_of("model.experts")
    assert type(layer).__module__ == "vllm_ascend.ops.common_fused_moe"
    for _ in range(2):
        w = refit(layer)
        x_MK = torch.randn(9, models.HIDDEN, dtype=torch.float32, device="cpu").bfloat16()
        logits_ME = torch.randn(9, models.EXPERTS, dtype=torch.float32, device="cpu").bfloat16()
        with engine.forward(config, tokens=9):
            found = layer.forward_impl(x_MK.npu(), logits_ME.npu()).cpu().double()
        weight_MT, expert_MT = logits_ME.double().softmax(-1).topk(models.EXPERTS_A_TOKEN)
        wanted = torch.zeros_like(found)
        for token, row in enumerate(x_MK.double()):
            for weight, expert in zip(weight_MT[token] / weight_MT[token].sum(), expert_MT[token], strict=True):
                gate, up = (w["w13_weight"][expert] @ row).chunk(2)
                wanted[token] += weight * (w["w2_weight"][expert] @ (nn.functional.silu(gate) * up))
        assert (found - wanted).norm() / wanted.norm() < 0.04


def test_graphs_are_refused_on_few_ranks(config, monkeypatch):
    from vllm.config import CompilationLevel

    monkeypatch.setattr(config.compilation_config, "level", CompilationLevel.PIECEWISE)
    monkeypatch.setattr(config.model_config, "enforce_eager", False)
    with pytest.raises(RefitError, match="set enforce_eager"):
        layer_of("model.experts_in_graphs")


def test_why_graphs_are_refused(config):
    """Its way in graphs, among few ranks, leaves tokens as they are, whether or not they should be quantized."""
    layer = layer_of("model.more_experts")
    refit(layer)
    layer.quant_method.quant_method.use_aclgraph = True
    x_MK, logits_ME = torch.randn(9, models.HIDDEN), torch.randn(9, models.EXPERTS)
    with engine.forward(config, tokens=9), pytest.raises(RuleBroken, match=r"grouped_matmul: .*bfloat16.*int8"):
        layer.forward_impl(x_MK, logits_ME)
