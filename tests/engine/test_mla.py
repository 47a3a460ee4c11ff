"""What vLLM derives from latent attention's weights follows them, in place.

vLLM's CPU build cannot make a layer of latent attention (its prefill wants flash attention): here vLLM's own derivation
runs on a layer that has what it reads. Whole models were run on an H200.
"""

import pytest
import torch
from torch import nn
from vllm.model_executor.layers.attention import MLAAttention
from vllm.model_executor.layers.attention.attention import set_default_quant_scales
from vllm.model_executor.layers.linear import UnquantizedLinearMethod
from vllm.v1.attention.backend import MLAAttentionImpl

from ascend_quant import oracle
from ascend_quant.integrations.vllm.layers import mla
from ascend_quant.integrations.vllm.layers.linear import QuantizedLinearMethod
from ascend_quant.refit import RefitError
from ascend_quant.schemes import get_scheme

HEADS, RANK, NOPE, VALUE = 3, 128, 16, 32
SHAPE = (HEADS * (NOPE + VALUE), RANK)


class Impl(MLAAttentionImpl):
    """vLLM's own base, without attention: nothing is computed here."""

    __init__ = forward_mha = forward_mqa = None


def projection(scheme: str) -> nn.Module:
    layer = nn.Module()
    layer.input_size_per_partition = RANK
    layer.quant_method = UnquantizedLinearMethod() if scheme == "bf16" else QuantizedLinearMethod(get_scheme(scheme))
    if scheme == "bf16":
        layer.weight = nn.Parameter(torch.zeros(SHAPE, dtype=torch.bfloat16), requires_grad=False)
    else:
        layer.quant_method.create_weights(layer, RANK, [SHAPE[0]], RANK, SHAPE[0], torch.bfloat16, weight_loader=None)
    return layer


def attention(kv_b_proj: nn.Module) -> MLAAttention:
    layer = MLAAttention.__new__(MLAAttention)
    nn.Module.__init__(layer)
    layer.kv_b_proj, layer.layer_name, layer.quant_config = kv_b_proj, "layers.0.attn", None
    layer.kv_lora_rank, layer.num_heads, layer.qk_nope_head_dim, layer.v_head_dim = RANK, HEADS, NOPE, VALUE
    layer.is_aiter_triton_fp4_bmm_enabled = layer.is_aiter_triton_fp8_bmm_enabled = layer.dcp_q_replicate = False
    layer.is_amx_bmm_enabled = False
    layer.calculate_kv_scales, layer.impl = False, Impl.__new__(Impl)
    set_default_quant_scales(layer, register_buffer=True)
    return layer


def write(kv_b_proj: nn.Module, w_NK: torch.Tensor, scheme: str) -> torch.Tensor:
    """A refit; returns what the weight stands for."""
    if scheme == "bf16":
        kv_b_proj.weight.copy_(w_NK)
        return w_NK
    codes, scale = oracle.quantize(w_NK, get_scheme(scheme))
    kv_b_proj.weight.copy_(codes)
    kv_b_proj.weight_scale.view(-1).copy_(scale.view(-1))
    return oracle.dequantize(codes, scale)


@pytest.mark.parametrize("scheme", ["bf16", "int8", "fp8"])
def test_derived_tensors_follow_every_refit_in_place(scheme):
    kv_b_proj = projection(scheme)
    layer = attention(kv_b_proj)
    refresh = mla.follow(nn.ModuleList([layer]), torch.bfloat16)
    refresh()
    assert not hasattr(layer, "W_UV")  # the first time is vLLM's, behind its first load
    at = None
    for seed in range(3):
        w_NK = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).bfloat16()
        held = write(kv_b_proj, w_NK, scheme).T.reshape(RANK, HEADS, NOPE + VALUE).float()
        refresh() if at else layer.process_weights_after_loading(torch.bfloat16)
        for name, expected in (
            ("W_UK_T", held[..., :NOPE].permute(1, 2, 0)),
            ("W_UV", held[..., NOPE:].transpose(0, 1)),
        ):
            torch.testing.assert_close(getattr(layer, name).float(), expected, rtol=2**-6, atol=1e-6)
        now = {name: getattr(layer, name).data_ptr() for name in mla.DERIVED}
        assert at in (None, now)
        at = now


def test_what_is_derived_beside_them_is_told(monkeypatch):
    layer = attention(projection("int8"))
    monkeypatch.setattr(
        MLAAttention, "process_weights_after_loading", lambda self, dtype: setattr(self, "W_K", torch.ones(1))
    )
    mla.follow(nn.ModuleList([layer]), torch.bfloat16)
    with pytest.raises(RefitError, match=r"layers.0.attn: this vLLM derives \['W_K'\] from kv_b_proj"):
        layer.process_weights_after_loading(torch.bfloat16)
