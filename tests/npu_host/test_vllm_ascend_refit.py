"""Refits through vllm-ascend's real classes: bytes, addresses and formats, and what its compute reads afterwards."""

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


@pytest.fixture(autouse=True)
def ascend(monkeypatch):
    """vllm-ascend's settings without a worker; the default device and dtype as while vLLM builds a model."""
    from vllm_ascend import utils
    from vllm_ascend.quantization import method_adapters

    plugin.register()
    settings = SimpleNamespace(weight_nz_mode=0, enable_fused_mc2=0)
    monkeypatch.setattr(utils, "get_ascend_config", lambda: settings)
    monkeypatch.setattr(method_adapters, "enable_dsa_cp_with_layer_shard", lambda: False)
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("npu:0"):
        yield
    torch.set_default_dtype(torch.float32)


def layer_of(method, *shape) -> nn.Module:
    layer = nn.Module()
    layer.prefix, layer.ascend_quant_settle = "layer", lambda: None
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
    assert before["weight"][3] == NZ if nz else before["weight"][3] != NZ
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
        assert tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        for tokens in (1, 5):
            x_MK, bias_N = random(tokens, length, seed=9), random(sum(rows), seed=8)
            found = method.apply(layer, x_MK.npu(), bias_N.npu()).cpu()
            with torch.device("cpu"):
                expected = oracle.matmul(x_MK, codes, scale, bias_N)
            assert torch.equal(found, expected.to(torch.bfloat16))


@pytest.mark.parametrize("counts", [[5, 0, 9, 3], [17, 0, 0, 0], [0, 0, 0, 1]])
def test_three_refits_of_experts(monkeypatch, counts):
    from vllm_ascend.ops.fused_moe import moe_mlp

    from ascend_quant.integrations.vllm_ascend.experts import Int8ExpertsScheme, Int8NpuExpertsMethod

    experts, hidden, intermediate = 4, 64, 96
    method = object.__new__(Int8NpuExpertsMethod)  # its __init__ asks a running engine for its communication groups
    method.prefix, method.quant_method = "experts", object.__new__(Int8ExpertsScheme)
    layer = layer_of(method, experts, hidden, intermediate, torch.bfloat16)
    refit, residents = refit_of(layer)
    before = tensors_of(layer)
    assert before["w13_weight"][3] == before["w2_weight"][3] == NZ
    monkeypatch.setattr(moe_mlp, "dispose_tensor", lambda tensor: None)
    monkeypatch.setattr(moe_mlp, "_EXTRA_CTX", SimpleNamespace(moe_comm_type=moe_mlp.MoECommType.ALLGATHER))
    stream = SimpleNamespace(record_event=lambda: None)
    monkeypatch.setattr(torch.npu, "current_stream", lambda: stream)
    for seed in range(3):
        w = {
            "w13_weight": random(experts, 2 * intermediate, hidden, seed=seed) / 8,
            "w2_weight": random(experts, hidden, intermediate, seed=seed + 50) / 8,
        }
        with refit.session():
            for expert in (2, 0, 3, 1):
                for name, resident in residents.items():
                    half = w[name].shape[1] // 2
                    for part in (slice(half, None), slice(0, half)):
                        put(refit, resident, resident.data[expert, part], w[name][expert, part])
        for _ in range(2):
            method.process_weights_after_loading(layer)
        (c13, s13), (c2, s2) = (oracle.quantize_weight(w[name]) for name in ("w13_weight", "w2_weight"))
        assert torch.equal(residents["w13_weight"].place[:].cpu(), c13.view(-1, hidden))
        assert torch.equal(residents["w2_weight"].place[:].cpu(), c2.view(-1, intermediate))
        assert torch.equal(layer.w13_weight_scale_fp32.cpu(), s13)
        assert torch.equal(layer.w2_weight_scale.cpu(), s2.to(torch.bfloat16))
        assert tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        x_MK = random(sum(counts), hidden, seed=7)
        out = moe_mlp.quant_apply_mlp(
            hidden_states=x_MK.npu(),
            w1=[layer.w13_weight],
            w1_scale=[layer.w13_weight_scale_fp32],
            w2=[layer.w2_weight],
            w2_scale=[layer.w2_weight_scale],
            group_list=torch.tensor(counts),
            group_list_type=1,
            fusion=True,
            act_quant_type=torch.int8,
        )
        found = (out[0] if isinstance(out, tuple) else out).cpu()
        with torch.device("cpu"):
            expert_M1 = torch.repeat_interleave(torch.arange(experts), torch.tensor(counts)).unsqueeze(1)
            ones, rounded = torch.ones(len(x_MK), 1), s2.to(torch.bfloat16).float()
            expected = oracle.experts(x_MK, ones, expert_M1, c13, s13, c2, rounded)
        assert torch.equal(found, expected.to(torch.bfloat16))
