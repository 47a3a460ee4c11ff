"""Serving on CUDA: the GEMM and fused MoE of each scheme that needs no engine, such as int8.

How int8 differs from the oracle, beyond the order of float32 products: each expert's output is rounded to x's dtype
before they are added, see triton_experts.py. A NaN among the activations of a linear layer spoils its row, as the
oracle's.

What is served by an engine's kernels (the other schemes, int8's cutlass product) an engine's adapter registers, see
engine_products.py. What torch.compile traces holds no branch on the number of tokens and no wait for the device.
"""

import torch

from ascend_quant.kernels.cuda.serve import linear_choice, token_ops, triton_tokens
from ascend_quant.kernels.cuda.serve.triton_linear import int8_product
from ascend_quant.kernels.engine_products import engine_product
from ascend_quant.kernels.int4_layouts import MarlinTiles
from ascend_quant.kernels.registry import ServingTable
from ascend_quant.kernels.storage import Serving, Storage, laid_out, rows_as_they_are
from ascend_quant.oracle import BLOCK
from ascend_quant.schemes import Scheme
from ascend_quant.schemes.scheme import FP8_CAPABILITY

BY_SHAPE = "by shape and tokens vLLM's cutlass_scaled_mm or Triton's tiles (see `python -m ascend_quant.commands.tune`)"


def storage(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Buffers for a weight (.., N, K).

    Raises:
        ValueError: a shape that the scheme's kernels do not take.
    """
    if scheme.codes == "int4":
        layout = MarlinTiles(shape, scheme.group)
        return laid_out(layout, layout.served_scales)
    if scheme.codes == "fp8" and (capability := torch.cuda.get_device_capability()) < FP8_CAPABILITY:
        raise ValueError(
            f"this GPU (compute capability {capability[0]}.{capability[1]}) does not support FP8; choose int8"
        )
    if scheme.shares == "block" and shape[-1] % BLOCK:
        raise ValueError(
            f"fp8_block weights of {shape[-1]} input channels a rank: vLLM's kernels need multiples of "
            f"{BLOCK}; choose another tensor parallel size or scheme fp8, or keep the layer in BF16 with "
            "`ignore`"
        )
    if scheme.codes == "int8" and torch.cuda.is_available():
        linear_choice.log_choice(torch.cuda.get_device_capability())
    return rows_as_they_are(scheme, shape)


def matmul(
    x: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product of `oracle.matmul` for x (..., K), in x's dtype; `bias_N` has x's dtype too."""
    x_codes, x_scale_M1 = quantize_tokens(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
    out_MN = scaled_product(x_codes, codes_NK, x_scale_M1, scale_N.view(-1, 1), bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def quantize_tokens(x_MK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The oracle's codes and scales (M, 1); an op in a graph, where integrations/vllm/graphs/fusion.py finds it."""
    if torch.compiler.is_compiling():
        return token_ops.quantize_tokens(x_MK)
    return triton_tokens.quantize_tokens(x_MK)


def quantize_rows(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """`oracle.quantize_rows` of a weight: int8 codes (N, K) and scales (N,)."""
    codes_NK, scale_N1 = triton_tokens.quantize_tokens(w_NK)
    return codes_NK, scale_N1.view(-1)


def float32_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """x (..., K) times the weight of its dtype, (..., N) in float32: exact products, summed in float32."""
    out_MN = torch.mm(x.reshape(-1, x.shape[-1]), weight_NK.t(), out_dtype=torch.float32)
    return out_MN.view(*x.shape[:-1], weight_NK.shape[0])


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
    return engine_product("int8_linear")(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype)


@scaled_product.register_fake
def _(x_codes_MK, codes_NK, x_scale_M1, scale_N1, bias_N, dtype):
    return x_codes_MK.new_empty(x_codes_MK.shape[0], codes_NK.shape[0], dtype=dtype)


@torch.library.custom_op("ascend_quant::router_product", mutates_args=())
def router_product(x: torch.Tensor, weight_NK: torch.Tensor, any_number: bool = False) -> torch.Tensor:
    """x (..., K) @ weight.T in their dtype; an op of its own, because which kernel multiplies depends on M.

    Args:
        any_number: of tokens is multiplied by the kernel for few.
    """
    from ascend_quant.kernels.cuda.serve import triton_router

    takes = triton_router.takes(x, weight_NK, any_number)
    return triton_router.product(x, weight_NK) if takes else torch.nn.functional.linear(x, weight_NK)


@router_product.register_fake
def _(x, weight_NK, any_number=False):
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
    from ascend_quant.kernels.cuda.serve import triton_experts

    stacks = (w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK)
    return triton_experts.experts(x_MK, weight_MT, expert_MT, *stacks, local_G)


@experts.register_fake
def _(x_MK, weight_MT, expert_MT, w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK, local_G=None):
    return x_MK.new_empty(x_MK.shape)


SERVING = ServingTable("cuda")
SERVING.register(Serving(matmul, experts, f"{BY_SHAPE}; experts by Triton kernels of its own"), "int8")
