"""Refits through vllm-ascend's real classes: bytes, addresses and formats, and what its compute reads afterwards."""

import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ascend_quant import oracle
from ascend_quant.integrations import vllm as plugin
from npu_host import layers

pytestmark = pytest.mark.each_version


@pytest.fixture(autouse=True)
def ascend(monkeypatch):
    """vllm-ascend's settings without a worker; the default device and dtype as while vLLM builds a model."""
    from vllm_ascend import utils
    from vllm_ascend.quantization import method_adapters

    plugin.register()
    settings = SimpleNamespace(weight_nz_mode=0, enable_fused_mc2=0)
    monkeypatch.setattr(utils, "get_ascend_config", lambda: settings)
    monkeypatch.setattr(method_adapters, "enable_dsa_cp_with_layer_shard", lambda: False, raising=False)  # gone in 0.27
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("npu:0"):
        yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("nz", [True, False])
@pytest.mark.parametrize(("rows", "length"), [([64, 32], 64), ([40, 33], 50), ([16], 1)])
def test_three_refits_of_a_linear_layer(nz, rows, length):
    layers.three_refits_of_a_linear_layer(nz, rows, length)


@pytest.mark.parametrize("counts", [[5, 0, 9, 3], [17, 0, 0, 0], [0, 0, 0, 1]])
def test_three_refits_of_experts(monkeypatch, counts):
    experts, hidden, intermediate = 4, 64, 96
    method = layers.experts_method()
    layer = layers.layer_of(method, experts, hidden, intermediate, torch.bfloat16)
    refit, residents = layers.refit_of(layer)
    before = layers.tensors_of(layer)
    assert before["w13_weight"][3] == before["w2_weight"][3] == layers.NZ
    for seed in range(3):
        expected = layers.refit_experts(refit, residents, seed)  # records events on the real stream
        for _ in range(2):
            method.process_weights_after_loading(layer)
        (c13, s13), (c2, s2) = expected["w13_weight"], expected["w2_weight"]
        assert torch.equal(residents["w13_weight"].layout[:].cpu(), c13.view(-1, hidden))
        assert torch.equal(residents["w2_weight"].layout[:].cpu(), c2.view(-1, intermediate))
        assert torch.equal(layer.w13_weight_scale_fp32.cpu(), s13)
        assert torch.equal(layer.w2_weight_scale.cpu(), s2.to(torch.bfloat16))
        assert layers.tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        x_MK = layers.random(sum(counts), hidden, seed=7)
        found = computed(monkeypatch, method.quant_method, layer, x_MK.npu(), counts).cpu()
        with torch.device("cpu"):
            expert_M1 = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts)).unsqueeze(1)
            ones, rounded = torch.ones(len(x_MK), 1), s2.to(torch.bfloat16).float()
            wanted = oracle.experts(x_MK, ones, expert_M1, c13, s13, c2, rounded)
        assert torch.equal(found, wanted.to(torch.bfloat16))


def computed(monkeypatch, scheme, layer: nn.Module, x_MK: torch.Tensor, counts: list[int]) -> torch.Tensor:
    """What vllm-ascend makes of rows that are sorted by expert; its function takes tensors, or since 0.30 a layer."""
    from vllm_ascend.ops.fused_moe import moe_mlp

    read_here = sys.modules[type(scheme).__mro__[1].__module__] if hasattr(moe_mlp, "apply_moe_mlp") else moe_mlp
    stream = SimpleNamespace(record_event=lambda: None)  # the layer's own refits record events on the real one
    with monkeypatch.context() as patched:
        patched.setattr(read_here, "dispose_tensor", lambda tensor: None)
        patched.setattr(read_here, "_EXTRA_CTX", SimpleNamespace(moe_comm_type=read_here.MoECommType.ALLGATHER))
        patched.setattr(torch.npu, "current_stream", lambda: stream)
        groups = {"hidden_states": x_MK, "group_list": torch.tensor(counts), "group_list_type": 1, "fusion": True}
        if read_here is moe_mlp:
            scales = {"w1_scale": [layer.w13_weight_scale_fp32], "w2_scale": [layer.w2_weight_scale]}
            weights = {"w1": [layer.w13_weight], "w2": [layer.w2_weight], **scales}
            out = moe_mlp.quant_apply_mlp(**groups, **weights, act_quant_type=torch.int8)
        else:
            rest = dict.fromkeys(("dynamic_scale", "topk_scales", "weights"))
            plain = SimpleNamespace(is_quant=True)
            out = moe_mlp.apply_moe_mlp(moe_mlp.MoEMlpComputeInput(**groups, **rest, quant=plain, layer=layer), scheme)
    return out[0] if isinstance(out, tuple) else out
