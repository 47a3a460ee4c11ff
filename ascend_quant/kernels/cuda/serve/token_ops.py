"""The kernels that quantize activations, as torch custom ops for compiled graphs.

A graph is traced with `quantize_tokens` only; integrations/vllm/graphs/fusion.py replaces it by the fused ops.
"""

import torch

from ascend_quant.kernels.cuda.serve import triton_fused_tokens, triton_tokens
from ascend_quant.kernels.cuda.serve.triton_tokens import outputs


@torch.library.custom_op("ascend_quant::quantize_tokens", mutates_args=())
def quantize_tokens(x_MK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantize rows, see `triton_tokens.quantize_tokens`."""
    return triton_tokens.quantize_tokens(x_MK)


@quantize_tokens.register_fake
def _(x_MK):
    return outputs(x_MK, x_MK.shape[1])


@torch.library.custom_op("ascend_quant::rms_norm_quantize", mutates_args=())
def rms_norm_quantize(
    x_MK: torch.Tensor, weight_K: torch.Tensor, eps: float, rounded: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of the RMSNorm of x."""
    return triton_fused_tokens.rms_norm_quantize(x_MK, weight_K, eps, None, rounded)[:2]


@rms_norm_quantize.register_fake
def _(x_MK, weight_K, eps, rounded=False):
    return outputs(x_MK, x_MK.shape[1])


@torch.library.custom_op("ascend_quant::add_rms_norm_quantize", mutates_args=())
def add_rms_norm_quantize(
    x_MK: torch.Tensor, residual_MK: torch.Tensor, weight_K: torch.Tensor, eps: float, rounded: bool = False
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return codes and scales of the RMSNorm of x + residual, and this sum."""
    return triton_fused_tokens.rms_norm_quantize(x_MK, weight_K, eps, residual_MK, rounded)


@add_rms_norm_quantize.register_fake
def _(x_MK, residual_MK, weight_K, eps, rounded=False):
    return *outputs(x_MK, x_MK.shape[1]), residual_MK.new_empty(residual_MK.shape)


@torch.library.custom_op("ascend_quant::silu_mul_quantize", mutates_args=())
def silu_mul_quantize(x: torch.Tensor, rounded: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Return codes and scales of silu(gate) * up."""
    return triton_fused_tokens.silu_mul_quantize(x, rounded)


@silu_mul_quantize.register_fake
def _(x, rounded=False):
    return outputs(x, x.shape[1] // 2)
