"""Refits of single layers through vllm-ascend's real classes, whichever version is installed."""

import torch
import torch_npu
from torch import nn

from ascend_quant import oracle
from ascend_quant.engine import layout
from ascend_quant.refit import Refit
from ascend_quant.refit.resident import QuantizedWeight

NZ = 29


def layer_of(method, *shape) -> nn.Module:
    layer = nn.Module()
    layer.prefix, layer.ascend_quant_settle = "layer", lambda: None
    method.create_weights(layer, *shape)
    return layer


def refit_of(layer: nn.Module) -> tuple[Refit, dict[str, QuantizedWeight]]:
    residents = {
        name: QuantizedWeight(
            name, one.stand_in.data, one.scale, one.stand_in.shape[-1], (), one.weight_layout, one.copies
        )
        for name, one in layout.layouts_of(layer).items()
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


def three_refits_of_a_linear_layer(nz: bool, rows: list[int], length: int) -> None:
    """Bytes, addresses, format, and what vllm-ascend computes after each."""
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
        assert torch.equal(weight.layout[:].cpu(), codes) and torch.equal(layer.weight_scale.cpu(), scale)
        assert torch.equal(layer.weight_scale_fp32.cpu(), scale)
        assert tensors_of(layer) == before and refit.last_receipt.digest == refit.digest()
        for tokens in (1, 5):
            x_MK, bias_N = random(tokens, length, seed=9), random(sum(rows), seed=8)
            found = method.apply(layer, x_MK.npu(), bias_N.npu()).cpu()
            with torch.device("cpu"):
                expected = oracle.matmul(x_MK, codes, scale) + bias_N.float()
            assert torch.equal(found, expected.to(torch.bfloat16))


def experts_method():
    """Without its __init__, which asks a running engine for its communication groups."""
    from ascend_quant.integrations.vllm_ascend.experts import Int8ExpertsScheme, Int8NpuExpertsMethod

    method = object.__new__(Int8NpuExpertsMethod)
    method.prefix, method.quant_method = "experts", object.__new__(Int8ExpertsScheme)
    method.quant_method.use_expert_weight_list = False  # read since 0.27
    return method


def refit_experts(refit: Refit, residents: dict[str, QuantizedWeight], seed: int) -> dict[str, tuple]:
    """One refit of four experts, shard by shard; codes and scales by the oracle."""
    w = {name: random(*one.data.shape, seed=seed + 50 * i) / 8 for i, (name, one) in enumerate(residents.items())}
    with refit.session():
        for expert in (2, 0, 3, 1):
            for name, resident in residents.items():
                half = w[name].shape[1] // 2
                for part in (slice(half, None), slice(0, half)):
                    put(refit, resident, resident.data[expert, part], w[name][expert, part])
    return {name: oracle.quantize_weight(w_ENK) for name, w_ENK in w.items()}
