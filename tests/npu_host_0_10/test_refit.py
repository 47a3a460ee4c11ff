"""Refits of single layers through vllm-ascend 0.10's real classes: bytes, addresses, formats, and what is computed."""

from types import SimpleNamespace

import pytest
import torch
import torch_npu
from torch import nn

from ascend_quant import oracle
from ascend_quant.integrations import vllm as plugin
from ascend_quant.integrations.vllm import lying
from ascend_quant.refit import Refit
from ascend_quant.resident import QuantizedWeight

NZ = 29
EXPERTS, HIDDEN, INTERMEDIATE = 4, 64, 128


@pytest.fixture(autouse=True)
def building():
    """The default device and dtype as while vLLM builds a model."""
    plugin.register()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("npu:0"):
        yield
    torch.set_default_dtype(torch.float32)


def layer_of(method, *shape) -> nn.Module:
    layer = nn.Module()
    layer.ascend_quant_settle = lambda: None
    method.create_weights(layer, *shape)
    return layer


def refit_of(layer: nn.Module) -> tuple[Refit, dict[str, QuantizedWeight]]:
    residents = {
        name: QuantizedWeight(name, one.stand_in.data, one.scale, one.stand_in.shape[-1], (), one.place, one.copies)
        for name, one in lying.lying_of(layer).items()
    }
    return Refit(list(residents.values())), residents


def put(refit: Refit, resident: QuantizedWeight, view: torch.Tensor, shard: torch.Tensor) -> None:
    slot = refit.batch.new_sources([(resident.name, shard.numel())])
    refit.write(slot, resident, view, shard.npu())


def tensors_of(layer: nn.Module) -> dict[str, tuple]:
    """Everything that the layer's compute may read: where it is, and in which format."""
    found = {**dict(layer.named_parameters()), **{k: v for k, v in vars(layer).items() if isinstance(v, torch.Tensor)}}
    return {name: (t.data_ptr(), tuple(t.shape), t.dtype, torch_npu.get_npu_format(t)) for name, t in found.items()}


def random(*shape, seed: int) -> torch.Tensor:
    generator = torch.Generator("cpu").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cpu").to(torch.bfloat16)


@pytest.mark.parametrize("nz", [True, False])
@pytest.mark.parametrize(("rows", "length"), [([64, 32], 64), ([40, 33], 50), ([16], 1)])
def test_three_refits_of_a_linear_layer(nz, rows, length):
    from ascend_quant.integrations.vllm_ascend.linear import Int8NpuLinearMethod

    method = Int8NpuLinearMethod(nz)
    layer = layer_of(method, length, rows, length, sum(rows), torch.bfloat16)
    refit, residents = refit_of(layer)
    weight, before = residents["weight"], tensors_of(layer)
    assert (before["weight"][3] == NZ) == nz
    for seed in range(3):
        w_NK = random(sum(rows), length, seed=seed)
        with refit.session():
            for part in (slice(rows[0], None), slice(0, rows[0])):
                if len(w_NK[part]):
                    put(refit, weight, weight.data[part], w_NK[part])
        for _ in range(2):
            method.process_weights_after_loading(layer)
        codes, scale = oracle.quantize_weight(w_NK)
        assert torch.equal(weight.place[:].cpu(), codes) and torch.equal(layer.weight_scale.cpu(), scale)
        assert torch.equal(layer.weight_scale_fp32.cpu(), scale)
        assert tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        for tokens in (1, 5):
            x_MK, bias_N = random(tokens, length, seed=9), random(sum(rows), seed=8)
            found = method.apply(layer, x_MK.npu(), bias_N.npu()).cpu()
            with torch.device("cpu"):
                expected = oracle.matmul(x_MK, codes, scale, bias_N)
            assert torch.equal(found, expected.to(torch.bfloat16))


def experts_method():
    """Without its __init__, which asks a running engine for its communication groups."""
    from ascend_quant.integrations.vllm_ascend.experts import Int8ExpertsScheme, Int8NpuExpertsMethod

    method = object.__new__(Int8NpuExpertsMethod)
    method.prefix, method.quant_method = "experts", object.__new__(Int8ExpertsScheme)
    return method


def refit_experts(refit: Refit, residents: dict[str, QuantizedWeight], seed: int) -> dict[str, tuple]:
    """One refit, shard by shard; codes and scales by the oracle."""
    w = {
        "w13_weight": random(EXPERTS, 2 * INTERMEDIATE, HIDDEN, seed=seed) / 8,
        "w2_weight": random(EXPERTS, HIDDEN, INTERMEDIATE, seed=seed + 50) / 8,
    }
    with refit.session():
        for expert in (2, 0, 3, 1):
            for name, resident in residents.items():
                half = w[name].shape[1] // 2
                for part in (slice(half, None), slice(0, half)):
                    put(refit, resident, resident.data[expert, part], w[name][expert, part])
    return {name: oracle.quantize_weight(w_ENK) for name, w_ENK in w.items()}


@pytest.mark.parametrize("how", ["MC2", "AllGather"])
@pytest.mark.parametrize("counts", [[5, 0, 9, 3], [17, 0, 0, 0], [0, 0, 0, 1]])
def test_three_refits_of_experts(monkeypatch, counts, how):
    from vllm_ascend.ops.layers import moe_mlp

    method = experts_method()
    # as many as vllm-ascend counts, on the device
    layer = layer_of(method, torch.tensor(EXPERTS), HIDDEN, INTERMEDIATE, torch.bfloat16)
    refit, residents = refit_of(layer)
    before = tensors_of(layer)
    assert NZ not in (before["w13_weight"][3], before["w2_weight"][3])
    assert before["w13_weight_scale"][2] == before["w2_weight_scale"][2] == torch.bfloat16
    state = SimpleNamespace(fused_moe_state=moe_mlp.FusedMoEState[how])
    monkeypatch.setattr(moe_mlp, "get_forward_context", lambda: state)
    monkeypatch.setattr(moe_mlp, "dispose_tensor", lambda tensor: None)
    for seed in range(3):
        expected = refit_experts(refit, residents, seed)
        for _ in range(2):
            method.process_weights_after_loading(layer)
        for name, (codes, scale) in expected.items():
            assert torch.equal(residents[name].place[:].cpu(), codes.flatten(0, 1))
            assert torch.equal(getattr(layer, f"{name}_scale").cpu(), scale.to(torch.bfloat16))
        assert torch.equal(layer.w13_weight_scale_fp32.cpu(), expected["w13_weight"][1])
        assert tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        x_MK = random(sum(counts), HIDDEN, seed=7)
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
