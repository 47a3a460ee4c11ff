"""Serving on CUDA: the GEMM and the fused MoE of schemes that need no engine kernels, such as int8.

Apart from the order of float32 products, int8 differs from the oracle in one place: each expert's output is rounded to
x's dtype before the sum (triton_experts.py). As in the oracle, a NaN activation of a linear layer makes its whole
output row NaN.

The engine integration registers products that use the engine's kernels (the other schemes, and cutlass for int8), see
engine_products.py. Code that torch.compile traces neither branches on the number of tokens nor synchronizes.
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

BY_SHAPE = "by shape and tokens vLLM's cutlass_scaled_mm or Triton's tiles (see `python -m benchmarks.tune`)"


def storage(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Allocate the buffers of a weight (.., N, K).

    Raises:
        ValueError: the scheme's kernels do not support the shape.
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
    """Compute the W8A8 product of `oracle.matmul` for x (..., K), in x's dtype, which is also that of `bias_N`."""
    x_codes, x_scale_M1 = quantize_tokens(x if x.dim() == 2 else x.reshape(-1, x.shape[-1]))
    out_MN = scaled_product(x_codes, codes_NK, x_scale_M1, scale_N.view(-1, 1), bias_N, x.dtype)
    return out_MN.view(*x.shape[:-1], codes_NK.shape[0])


def quantize_tokens(x_MK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the oracle's codes (M, K) and scales (M, 1), as an op that graphs/fusion.py finds in a graph."""
    if torch.compiler.is_compiling():
        return token_ops.quantize_tokens(x_MK)
    return triton_tokens.quantize_tokens(x_MK)


def quantize_rows(w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 codes (N, K) and scales (N) of a weight, as `oracle.quantize_rows`."""
    codes_NK, scale_N1 = triton_tokens.quantize_tokens(w_NK)
    return codes_NK, scale_N1.view(-1)


def float32_product(x: torch.Tensor, weight_NK: torch.Tensor) -> torch.Tensor:
    """Multiply x (..., K) by a weight of its dtype into float32 (..., N): exact products, float32 sums."""
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
    """Multiply int8 codes and apply the scales: (M, N) in `dtype`; cutlass applies the scales in reverse order.

    This is a custom op because its kernel depends on M, which torch.compile would specialize; see linear_choice.py.
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
    """Compute x (..., K) @ weight.T in their dtype, as a custom op because the kernel depends on M.

    Args:
        any_number: whether the kernel for few tokens is used for any number of tokens.
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
    """Compute the mixture of `oracle.experts`, in x's dtype, as a custom op because its tiles depend on M.

    Args:
        expert_MT: the routed experts, below E, or below G with `local_G`.
        local_G: int32, maps each of the model's G experts to its index in E, or to -1 on other ranks.
    """
    from ascend_quant.kernels.cuda.serve import triton_experts

    stacks = (w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK)
    return triton_experts.experts(x_MK, weight_MT, expert_MT, *stacks, local_G)


@experts.register_fake
def _(x_MK, weight_MT, expert_MT, w13_codes_ENK, w13_scale_EN, w2_codes_EKN, w2_scale_EK, local_G=None):
    return x_MK.new_empty(x_MK.shape)


SERVING = ServingTable("cuda")
SERVING.register(Serving(matmul, experts, f"{BY_SHAPE}; experts by Triton kernels of its own"), "int8")
