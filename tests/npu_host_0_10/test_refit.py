"""Refits of single layers through vllm-ascend 0.10's real classes: bytes, addresses, formats, and what is computed."""

from types import SimpleNamespace

import pytest
import torch
from npu_host import layers

from ascend_quant import oracle
from ascend_quant.integrations import vllm as plugin

EXPERTS, HIDDEN, INTERMEDIATE = 4, 64, 128


@pytest.fixture(autouse=True)
def building():
    """The default device and dtype as while vLLM builds a model."""
    plugin.register()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("npu:0"):
        yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("nz", [True, False])
@pytest.mark.parametrize(("rows", "length"), [([64, 32], 64), ([40, 33], 50), ([16], 1)])
def test_three_refits_of_a_linear_layer(nz, rows, length):
    layers.three_refits_of_a_linear_layer(nz, rows, length)


@pytest.mark.parametrize("how", ["MC2", "AllGather"])
@pytest.mark.parametrize("counts", [[5, 0, 9, 3], [17, 0, 0, 0], [0, 0, 0, 1]])
def test_three_refits_of_experts(monkeypatch, counts, how):
    from vllm_ascend.ops.layers import moe_mlp

    method = layers.experts_method()
    # as many as vllm-ascend counts, on the device
    layer = layers.layer_of(method, torch.tensor(EXPERTS), HIDDEN, INTERMEDIATE, torch.bfloat16)
    refit, residents = layers.refit_of(layer)
    before = layers.tensors_of(layer)
    assert layers.NZ not in (before["w13_weight"][3], before["w2_weight"][3])
    assert before["w13_weight_scale"][2] == before["w2_weight_scale"][2] == torch.bfloat16
    state = SimpleNamespace(fused_moe_state=moe_mlp.FusedMoEState[how])
    monkeypatch.setattr(moe_mlp, "get_forward_context", lambda: state)
    monkeypatch.setattr(moe_mlp, "dispose_tensor", lambda tensor: None)
    for seed in range(3):
        expected = layers.refit_experts(refit, residents, seed)
        for _ in range(2):
            method.process_weights_after_loading(layer)
        for name, (codes, scale) in expected.items():
            assert torch.equal(residents[name].layout[:].cpu(), codes.flatten(0, 1))
            assert torch.equal(getattr(layer, f"{name}_scale").cpu(), scale.to(torch.bfloat16))
        assert torch.equal(layer.w13_weight_scale_fp32.cpu(), expected["w13_weight"][1])
        assert layers.tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        x_MK = layers.random(sum(counts), HIDDEN, seed=7)
        found = moe_mlp.quant_apply_mlp(
            hidden_states=x_MK.npu(),
            w1=layer.w13_weight,
            w1_scale=layer.w13_weight_scale,
            w2=layer.w2_weight,
            w2_scale=layer.w2_weight_scale,
            group_list=torch.tensor(counts),
            group_list_type=1,
        ).cpu()
        with torch.device("cpu"):
            assert torch.equal(found, compute(x_MK, counts, expected, how == "MC2"))


def compute(x_MK: torch.Tensor, counts: list[int], weights: dict[str, tuple], fused: bool) -> torch.Tensor:
    """What vllm-ascend 0.10 computes of a layer's codes and scales, which it rounds to bfloat16.

    Args:
        fused: whether SwiGLU takes the int32 sums of the first product, or its bfloat16 results.
    """
    (c13, s13), (c2, s2) = ((codes, scale.bfloat16().float()) for codes, scale in weights.values())
    expert_M1 = torch.repeat_interleave(torch.arange(EXPERTS), torch.tensor(counts)).unsqueeze(1)
    if fused:
        return oracle.experts(x_MK, torch.ones(len(x_MK), 1), expert_M1, c13, s13, c2, s2).to(torch.bfloat16)
    rows = []
    for x_K, expert in zip(x_MK, expert_M1.view(-1), strict=True):
        gate, up = oracle.matmul(x_K.unsqueeze(0), c13[expert], s13[expert]).bfloat16().float().chunk(2, -1)
        act_1I = (gate * torch.sigmoid(gate) * up).to(torch.bfloat16)
        rows.append(oracle.matmul(act_1I, c2[expert], s2[expert]).bfloat16())
    return torch.cat(rows)
