"""Serving on CUDA with vLLM's own int8 kernels; cuda.py offers these functions beside its refit kernels.

How they differ from the oracle, beyond the order of float32 products:
* linear layers: code = round_half_even(x * (127 / absmax)), a product where the oracle divides. The scale is the same.
* experts: code = round(x * (127 / absmax)) with halves away from zero, a scale of at least 1e-10 / 127, and what
  passes between the kernels (gate and up, their product, each expert's output) is rounded to x's dtype.
A NaN among the activations of a linear layer counts as 0 (the oracle lets it spoil the row).

vllm is imported where it is used: the refit kernels need torch and triton alone. What torch.compile traces holds no
branch on the number of tokens and no wait for the device.
"""

import torch

CUTLASS_ALIGNMENT = 16  # of K and N
PRODUCT = f"vLLM's cutlass_scaled_mm (its Triton kernel unless K and N are multiples of {CUTLASS_ALIGNMENT})"


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (..., K), in x's dtype; `bias_N` has x's dtype too."""
    from vllm import _custom_ops as ops

    x_codes, x_scale_M1, _ = ops.scaled_int8_quant(x.contiguous())
    scale_N1 = scale_N.view(-1, 1)
    if _cutlass_takes(codes_NK, x.dtype):
        return ops.cutlass_scaled_mm(x_codes, codes_NK.t(), x_scale_M1, scale_N1, x.dtype, bias_N)
    out_MN = scaled_product(x_codes.view(-1, x.shape[-1]), codes_NK, x_scale_M1, scale_N1, bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def float32_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """x (..., K) times the weight of its dtype, (..., N) in float32: exact products, summed in float32."""
    out_MN = torch.mm(x.reshape(-1, x.shape[-1]), weight_NK.t(), out_dtype=torch.float32)
    return out_MN.view(*x.shape[:-1], weight_NK.shape[0])


def _cutlass_takes(codes_NK: torch.Tensor, dtype: torch.dtype) -> bool:
    return all(size % CUTLASS_ALIGNMENT == 0 for size in codes_NK.shape) and dtype in (torch.bfloat16, torch.float16)


@torch.library.custom_op("ascend_quant::scaled_product", mutates_args=())
def scaled_product(
    x_codes_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    x_scale_M1: torch.Tensor,
    scale_N1: torch.Tensor,
    bias_N: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """What vLLM does where cutlass cannot: its Triton kernel, for any K, N and float dtype; returns (M, N) in `dtype`.

    An op of its own, because that kernel's launcher chooses tiles by M, which torch.compile would freeze.
    """
    from vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm import triton_scaled_mm

    return triton_scaled_mm(x_codes_MK, codes_NK.t(), x_scale_M1, scale_N1, dtype, bias_N)


@scaled_product.register_fake
def _(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype):
    return x_codes_MK.new_empty(x_codes_MK.shape[0], codes_NK.shape[0], dtype=dtype)


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mixture of `oracle.experts`, in x's dtype.

    Args:
        expert_MT: experts that the router chose, below E, or below G where `local_G` is given.
        local_G: int32, the index into E of each of the model's G experts, -1 for those of other ranks.
    """
    from vllm.model_executor.layers.fused_moe.config import int8_w8a8_moe_quant_config

    config = int8_w8a8_moe_quant_config(
        w1_scale=w13_scale_EN, w2_scale=w2_scale_EK, a1_scale=None, a2_scale=None, per_act_token_quant=True
    )
    return _fused(x_MK, weight_MT, expert_MT, w13_codes_ENK, w2_codes_EKN, local_G, config)


def plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """The mixture of experts without quantization, in x's dtype; arguments as in `experts`."""
    return _fused(x_MK, weight_MT, expert_MT, w13_ENK, w2_EKN, local_G, None)


def _fused(x_MK, weight_MT, expert_MT, w13_ENK, w2_EKN, local_G, config) -> torch.Tensor:
    from vllm.model_executor.layers.fused_moe.fused_moe import fused_experts

    return fused_experts(
        x_MK.contiguous(),
        w13_ENK,
        w2_EKN,
        weight_MT,
        expert_MT,
        global_num_experts=w13_ENK.shape[0] if local_G is None else local_G.shape[0],
        expert_map=local_G,
        quant_config=config,
    )
