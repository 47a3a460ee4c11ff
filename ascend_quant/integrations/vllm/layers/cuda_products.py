"""The schemes' products on CUDA with vLLM's own kernels; `register` adds them to ascend_quant/kernels.

Differences from the oracle, besides the order of float32 products:

* fp8: an activation's scale is at least 1 / (448 * 512) (with blocks: 1e-10 / 448); intermediate results of the experts
  (gate and up, their product, each expert's output) are rounded to x's dtype.
* int4: activations must be BF16; weights are BF16(code * scale), as in the oracle.

A NaN activation of a linear layer makes its output row NaN, as in the oracle; but with fp8 it counts as 0.

vllm is imported inside the functions, so that the served schemes can be listed with only torch and triton. Code that
torch.compile traces neither branches on the number of tokens nor synchronizes.
"""

from functools import cache

import torch

from ascend_quant.kernels import engine_products
from ascend_quant.kernels.cuda.serve import products as cuda_serving
from ascend_quant.kernels.storage import Serving
from ascend_quant.oracle import BLOCK

BLOCKS_PER_SM = 4  # blocks that Marlin may start; linear layers need 1, experts 4
CUTLASS_ALIGNMENT = 16  # of N and K
CUTLASS = f"vLLM's cutlass_scaled_mm (its Triton kernel unless K and N are multiples of {CUTLASS_ALIGNMENT})"


def register() -> None:
    """Register vLLM's kernels with kernels/cuda; idempotent."""
    products = {"int8_linear": int8_linear, "plain_experts": plain_experts}
    engine_products.register(products, SERVING, cuda_serving.SERVING)


def int8_linear(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype) -> torch.Tensor:
    """Multiply int8 codes (cutlass); return (M, N) in `dtype`."""
    from vllm import _custom_ops as ops

    return ops.cutlass_scaled_mm(x_codes_MK, codes_NK.t(), x_scale_M1, scale_N1, dtype, bias_N)


def fp8_matmul(x, codes_NK, scale_N, bias_N=None) -> torch.Tensor:
    """Multiply x (..., K) by fp8 codes, with per-token activations, in x's dtype, which is also that of `bias_N`."""
    from vllm import _custom_ops as ops

    x_codes, x_scale_M1 = ops.scaled_fp8_quant(x.reshape(-1, x.shape[-1]), use_per_token_if_dynamic=True)
    scale_N1 = scale_N.view(-1, 1)
    if _cutlass_takes(codes_NK, x.dtype):
        out_MN = ops.cutlass_scaled_mm(x_codes, codes_NK.t(), x_scale_M1, scale_N1, x.dtype, bias_N)
    else:
        out_MN = fp8_product(x_codes, codes_NK, x_scale_M1, scale_N1, bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def fp8_block_matmul(x, codes_NK, scale_IJ, bias_N=None) -> torch.Tensor:
    """Multiply x by fp8 codes with 128x128 block scales, and activation scales per token and 128 channels."""
    out_MN = block_product(x.reshape(-1, x.shape[-1]), codes_NK, scale_IJ)
    out_MN = out_MN if bias_N is None else out_MN + bias_N
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def int4_matmul(x, tiles, scale_GN, bias_N=None) -> torch.Tensor:
    """Multiply x by BF16(code * scale), for int4 codes in Marlin's tiles."""
    out_MN = marlin_product(x.reshape(-1, x.shape[-1]), tiles, scale_GN)
    out_MN = out_MN if bias_N is None else out_MN + bias_N  # Marlin expects a permuted bias
    return out_MN.view(*x.shape[:-1], scale_GN.shape[-1])


def _cutlass_takes(codes_NK: torch.Tensor, dtype: torch.dtype) -> bool:
    return all(size % CUTLASS_ALIGNMENT == 0 for size in codes_NK.shape) and dtype in (torch.bfloat16, torch.float16)


@torch.library.custom_op("ascend_quant::fp8_product", mutates_args=())
def fp8_product(
    x_codes_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    x_scale_M1: torch.Tensor,
    scale_N1: torch.Tensor,
    bias_N: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """Multiply fp8 codes if cutlass cannot: vLLM's Triton kernel, an op since its launcher chooses tiles by M."""
    from vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm import triton_scaled_mm

    return triton_scaled_mm(x_codes_MK, codes_NK.t(), x_scale_M1, scale_N1, dtype, bias_N)


@fp8_product.register_fake
def _(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype):
    return x_codes_MK.new_empty(x_codes_MK.shape[0], codes_NK.shape[0], dtype=dtype)


@torch.library.custom_op("ascend_quant::block_product", mutates_args=())
def block_product(x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_IJ: torch.Tensor) -> torch.Tensor:
    """Multiply x by fp8 blocks with vLLM's Triton kernel (any N), an op since its launcher chooses tiles by M."""
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    x_codes, x_scale = fp8_utils.per_token_group_quant_fp8(x_MK.contiguous(), BLOCK, use_ue8m0=False)
    return fp8_utils.w8a8_triton_block_scaled_mm(x_codes, codes_NK, x_scale, scale_IJ, [BLOCK, BLOCK], x_MK.dtype)


@block_product.register_fake
def _(x_MK, codes_NK, scale_IJ):
    return x_MK.new_empty(x_MK.shape[0], codes_NK.shape[0])


@torch.library.custom_op("ascend_quant::marlin_product", mutates_args=())
def marlin_product(x_MK: torch.Tensor, tiles: torch.Tensor, scale_GN: torch.Tensor) -> torch.Tensor:
    """Multiply by int4 tiles with vLLM's Marlin kernel, an op since torch.compile must not see its workspace."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils import apply_gptq_marlin_linear
    from vllm.scalar_type import scalar_types

    from ascend_quant.integrations.vllm.compat import in_order

    none = _no_indices(x_MK.device)
    return apply_gptq_marlin_linear(
        input=_bf16(x_MK).contiguous(),
        weight=tiles,
        weight_scale=scale_GN,
        weight_zp=none,
        workspace=_workspace(x_MK.device),
        wtype=scalar_types.uint4b8,
        output_size_per_partition=scale_GN.shape[1],
        input_size_per_partition=x_MK.shape[1],
        **in_order(none),
    )


@marlin_product.register_fake
def _(x_MK, tiles, scale_GN):
    return x_MK.new_empty(x_MK.shape[0], scale_GN.shape[1])


def _bf16(x: torch.Tensor) -> torch.Tensor:
    if x.dtype != torch.bfloat16:
        raise ValueError(
            f"int4 weights have BF16 scales, so activations must be BF16, not {x.dtype}: set dtype=bfloat16"
        )
    return x


@cache
def _no_indices(device: torch.device) -> torch.Tensor:
    return torch.empty(0, dtype=torch.int32, device=device)


@cache
def _workspace(device: torch.device) -> torch.Tensor:
    """Return the workspace (locks) of Marlin's kernels, which leave it unchanged; there is one per device."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new

    return marlin_make_workspace_new(device, BLOCKS_PER_SM)


def fp8_experts(x_MK, weight_MT, expert_MT, w13_codes, w13_scale, w2_codes, w2_scale, local_G=None) -> torch.Tensor:
    """Compute the mixture of `products.experts` with fp8 codes and one scale per row."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    config = fp8_w8a8_moe_quant_config(
        w1_scale=w13_scale, w2_scale=w2_scale, per_act_token_quant=True, per_out_ch_quant=True
    )
    return _fused(x_MK, weight_MT, expert_MT, w13_codes, w2_codes, local_G, config)


def fp8_block_experts(
    x_MK, weight_MT, expert_MT, w13_codes, w13_scale, w2_codes, w2_scale, local_G=None
) -> torch.Tensor:
    """Compute the mixture of `products.experts` with fp8 codes and 128x128 block scales."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    config = fp8_w8a8_moe_quant_config(w1_scale=w13_scale, w2_scale=w2_scale, block_shape=[BLOCK, BLOCK])
    return _fused(x_MK, weight_MT, expert_MT, w13_codes, w2_codes, local_G, config)


def int4_experts(x_MK, weight_MT, expert_MT, w13_tiles, w13_scale, w2_tiles, w2_scale, local_G=None) -> torch.Tensor:
    """Compute the mixture of `products.experts` with int4 codes in Marlin's tiles."""
    from vllm.model_executor.layers.fused_moe.experts.marlin_moe import fused_marlin_moe
    from vllm.scalar_type import scalar_types

    return fused_marlin_moe(
        _bf16(x_MK).contiguous(),
        w13_tiles,
        w2_tiles,
        None,
        None,
        w13_scale,
        w2_scale,
        weight_MT.float(),
        expert_MT,
        quant_type_id=scalar_types.uint4b8.id,
        global_num_experts=w13_tiles.shape[0] if local_G is None else local_G.shape[0],
        expert_map=local_G,
        workspace=_workspace(x_MK.device),
    )


def plain_experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    local_G: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute the mixture of experts without quantization, in x's dtype; arguments as in `products.experts`."""
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


_FP8 = Serving(fp8_matmul, fp8_experts, CUTLASS)
_INT4 = Serving(int4_matmul, int4_experts, "vLLM's Marlin kernels")
SERVING = {
    "fp8": _FP8,
    "fp8_tensor": _FP8,
    "fp8_block": Serving(fp8_block_matmul, fp8_block_experts, "vLLM's w8a8_triton_block_scaled_mm"),
    "int4_g128": _INT4,
    "int4_g32": _INT4,
}
