"""Serving on CUDA with vLLM's own kernels; cuda.py offers these functions beside its refit kernels.

How they differ from the oracle, beyond the order of float32 products:
* int8 experts: each expert's output is rounded to x's dtype before they are added, see triton_experts.py.
* fp8: an activation's scale is at least 1 / (448 * 512) (in blocks: 1e-10 / 448); what passes between the experts'
  kernels (gate and up, their product, each expert's output) is rounded to x's dtype.
* int4: BF16 activations alone, weights are BF16(code * scale), as the oracle's.
A NaN among the activations of a linear layer spoils its row, as the oracle's; but with fp8 it counts as 0.

vllm is imported where it is used: the refit kernels need torch and triton alone. What torch.compile traces holds no
branch on the number of tokens and no wait for the device.
"""

from functools import cache

import torch

from ascend_quant.kernels import linear_choice, token_ops, triton_tokens
from ascend_quant.kernels.int4_places import MarlinTiles
from ascend_quant.kernels.storage import Serving, Storage, in_place, rows_as_they_are
from ascend_quant.kernels.triton_linear import int8_product
from ascend_quant.oracle import BLOCK
from ascend_quant.schemes import Scheme

FP8_CAPABILITY = (8, 9)  # the first that multiplies fp8
BLOCKS_PER_SM = 4  # that Marlin may start; linear layers need 1, experts 4
CUTLASS_ALIGNMENT = 16  # of K and N
BY_SHAPE = "by shape and tokens vLLM's cutlass_scaled_mm or Triton's tiles (see `ascend-quant tune`)"
CUTLASS = f"vLLM's cutlass_scaled_mm (its Triton kernel unless K and N are multiples of {CUTLASS_ALIGNMENT})"


def storage(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Buffers for a weight (.., N, K).

    Raises:
        ValueError: a shape that the scheme's kernels do not take.
    """
    if scheme.codes == "int4":
        place = MarlinTiles(shape, scheme.group)
        return in_place(place, place.served_scales)
    if scheme.codes == "fp8" and (capability := torch.cuda.get_device_capability()) < FP8_CAPABILITY:
        raise ValueError(f"this GPU (compute capability {capability[0]}.{capability[1]}) has no FP8; choose int8")
    if scheme.shares == "block" and shape[-1] % BLOCK:
        raise ValueError(
            f"fp8_block weights of {shape[-1]} input channels a rank: vLLM's kernels take multiples of {BLOCK}; choose "
            "another tensor parallel size or scheme fp8, or leave the layer out with `ignore`"
        )
    if scheme.codes == "int8" and torch.cuda.is_available():
        linear_choice.tell(torch.cuda.get_device_capability())
    return rows_as_they_are(scheme, shape)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (..., K), in x's dtype; `bias_N` has x's dtype too."""
    x_codes, x_scale_M1 = quantize_tokens(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
    out_MN = scaled_product(x_codes, codes_NK, x_scale_M1, scale_N.view(-1, 1), bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def quantize_tokens(x_MK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle's codes and scales (M, 1); an op in a graph, where integrations/vllm/fusion.py finds it."""
    if torch.compiler.is_compiling():
        return token_ops.quantize_tokens(x_MK)
    return triton_tokens.quantize_tokens(x_MK)


def fp8_matmul(x, codes_NK, scale_N, bias_N=None) -> torch.Tensor:
    """The same with fp8 codes, per-token activations."""
    from vllm import _custom_ops as ops

    x_codes, x_scale_M1 = ops.scaled_fp8_quant(x.reshape(-1, x.shape[-1]), use_per_token_if_dynamic=True)
    scale_N1 = scale_N.view(-1, 1)
    if _cutlass_takes(codes_NK, x.dtype):
        out_MN = ops.cutlass_scaled_mm(x_codes, codes_NK.t(), x_scale_M1, scale_N1, x.dtype, bias_N)
    else:
        out_MN = fp8_product(x_codes, codes_NK, x_scale_M1, scale_N1, bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def fp8_block_matmul(x, codes_NK, scale_IJ, bias_N=None) -> torch.Tensor:
    """The same with a scale for every 128x128 weights and for every 128 activations of a token."""
    out_MN = block_product(x.reshape(-1, x.shape[-1]), codes_NK, scale_IJ)
    out_MN = out_MN if bias_N is None else out_MN + bias_N
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def int4_matmul(x, tiles, scale_GN, bias_N=None) -> torch.Tensor:
    """x times BF16(code * scale), of codes in Marlin's tiles."""
    out_MN = marlin_product(x.reshape(-1, x.shape[-1]), tiles, scale_GN)
    out_MN = out_MN if bias_N is None else out_MN + bias_N  # Marlin would want it in an order of its own
    return out_MN.view(*x.shape[:-1], scale_GN.shape[-1])


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
    """The product of int8 codes, (M, N) in `dtype`; the scales multiply as in the oracle, with cutlass the other way.

    An op of its own, because its kernel is chosen by M, which torch.compile would freeze; see linear_choice.py.
    """
    tiles = linear_choice.linear(*codes_NK.shape, x_codes_MK.shape[0], dtype)
    if tiles is not None:
        return int8_product(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype, tiles)
    from vllm import _custom_ops as ops

    return ops.cutlass_scaled_mm(x_codes_MK, codes_NK.t(), x_scale_M1, scale_N1, dtype, bias_N)


@torch.library.custom_op("ascend_quant::fp8_product", mutates_args=())
def fp8_product(
    x_codes_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    x_scale_M1: torch.Tensor,
    scale_N1: torch.Tensor,
    bias_N: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """What vLLM does with fp8 where cutlass cannot: its Triton kernel, whose launcher chooses tiles by M as well."""
    from vllm.model_executor.layers.quantization.compressed_tensors.triton_scaled_mm import triton_scaled_mm

    return triton_scaled_mm(x_codes_MK, codes_NK.t(), x_scale_M1, scale_N1, dtype, bias_N)


@scaled_product.register_fake
@fp8_product.register_fake
def _(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype):
    return x_codes_MK.new_empty(x_codes_MK.shape[0], codes_NK.shape[0], dtype=dtype)


@torch.library.custom_op("ascend_quant::block_product", mutates_args=())
def block_product(x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_IJ: torch.Tensor) -> torch.Tensor:
    """vLLM's Triton kernel, which takes any N; an op of its own for the same reason."""
    from vllm.model_executor.layers.quantization.utils import fp8_utils

    x_codes, x_scale = fp8_utils.per_token_group_quant_fp8(x_MK.contiguous(), BLOCK, use_ue8m0=False)
    return fp8_utils.w8a8_triton_block_scaled_mm(x_codes, codes_NK, x_scale, scale_IJ, [BLOCK, BLOCK], x_MK.dtype)


@block_product.register_fake
def _(x_MK, codes_NK, scale_IJ):
    return x_MK.new_empty(x_MK.shape[0], codes_NK.shape[0])


@torch.library.custom_op("ascend_quant::marlin_product", mutates_args=())
def marlin_product(x_MK: torch.Tensor, tiles: torch.Tensor, scale_GN: torch.Tensor) -> torch.Tensor:
    """vLLM's Marlin kernel; an op of its own, since it needs a workspace that torch.compile need not see."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils import apply_gptq_marlin_linear
    from vllm.scalar_type import scalar_types

    none = _no_indices(x_MK.device)
    return apply_gptq_marlin_linear(
        input=_bf16(x_MK).contiguous(),
        weight=tiles,
        weight_scale=scale_GN,
        weight_zp=none,
        g_idx=none,
        g_idx_sort_indices=none,
        workspace=_workspace(x_MK.device),
        wtype=scalar_types.uint4b8,
        output_size_per_partition=scale_GN.shape[1],
        input_size_per_partition=x_MK.shape[1],
        is_k_full=True,
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
    """Marlin's locks, which its kernels leave as they find them."""
    from vllm.model_executor.layers.quantization.utils.marlin_utils import marlin_make_workspace_new

    return marlin_make_workspace_new(device, BLOCKS_PER_SM)


@torch.library.custom_op("ascend_quant::router_product", mutates_args=())
def router_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """x (..., K) @ weight.T in their dtype; an op of its own, because which kernel multiplies depends on M."""
    from ascend_quant.kernels import triton_router

    takes = triton_router.takes(x, weight_NK)
    return triton_router.product(x, weight_NK) if takes else torch.nn.functional.linear(x, weight_NK)


@router_product.register_fake
def _(x, weight_NK):
    return x.new_empty(*x.shape[:-1], weight_NK.shape[0])


@torch.library.custom_op("ascend_quant::experts", mutates_args=())
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
    """The mixture of `oracle.experts`, in x's dtype; an op of its own, because its tiles depend on M.

    Args:
        expert_MT: experts that the router chose, below E, or below G where `local_G` is given.
        local_G: int32, the index into E of each of the model's G experts, -1 for those of other ranks.
    """
    from ascend_quant.kernels import triton_experts

    stacks = (w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK)
    return triton_experts.experts(x_MK, weight_MT, expert_MT, *stacks, local_G)


@experts.register_fake
def _(x_MK, weight_MT, expert_MT, w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK, local_G=None):
    return x_MK.new_empty(x_MK.shape)


def fp8_experts(x_MK, weight_MT, expert_MT, w13_codes, w13_scale, w2_codes, w2_scale, local_G=None) -> torch.Tensor:
    """The same with fp8 codes and a scale a row."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    config = fp8_w8a8_moe_quant_config(
        w1_scale=w13_scale, w2_scale=w2_scale, per_act_token_quant=True, per_out_ch_quant=True
    )
    return _fused(x_MK, weight_MT, expert_MT, w13_codes, w2_codes, local_G, config)


def fp8_block_experts(
    x_MK, weight_MT, expert_MT, w13_codes, w13_scale, w2_codes, w2_scale, local_G=None
) -> torch.Tensor:
    """The same with a scale a 128x128 block."""
    from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config

    config = fp8_w8a8_moe_quant_config(w1_scale=w13_scale, w2_scale=w2_scale, block_shape=[BLOCK, BLOCK])
    return _fused(x_MK, weight_MT, expert_MT, w13_codes, w2_codes, local_G, config)


def int4_experts(x_MK, weight_MT, expert_MT, w13_tiles, w13_scale, w2_tiles, w2_scale, local_G=None) -> torch.Tensor:
    """The same with int4 codes in Marlin's tiles."""
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


_FP8 = Serving(fp8_matmul, fp8_experts, CUTLASS)
_INT4 = Serving(int4_matmul, int4_experts, "vLLM's Marlin kernels")
SERVING = {
    "int8": Serving(matmul, experts, f"{BY_SHAPE}; experts by Triton kernels of its own"),
    "fp8": _FP8,
    "fp8_tensor": _FP8,
    "fp8_block": Serving(fp8_block_matmul, fp8_block_experts, "vLLM's w8a8_triton_block_scaled_mm"),
    "int4_g128": _INT4,
    "int4_g32": _INT4,
}
