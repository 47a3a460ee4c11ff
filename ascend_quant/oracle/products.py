"""What layers compute with quantized weights: activations are quantized too (int8, fp8) or stay (int4)."""

from collections.abc import Callable

import torch
import torch.nn.functional as F

from ascend_quant.oracle.quantize import BLOCK, dequantize, quantize_fp8_tokens, quantize_rows
from ascend_quant.schemes import SCHEMES, Scheme


def product(
    x_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    scale: torch.Tensor,
    scheme: Scheme,
    bias_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """x_MK @ w_NK.T + bias_N of a scheme, in float32 (M, N); codes and scales as `quantize` returns them."""
    products: dict[str, Callable] = {"int8": matmul, "fp8": _fp8_product, "int4": _int4_product}
    if scheme.shares == "block":
        return _block_product(x_MK, codes_NK, scale, bias_N)
    return products[scheme.codes](x_MK, codes_NK, scale, bias_N)


def matmul(
    x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product x_MK @ w_NK.T + bias_N, in float32 (M, N).

    Activations are quantized per token; the sum over K of integer products is exact (float64 holds it for
    K below 2**38); scales multiply in the order activation, weight.
    """
    x_codes_MK, x_scale_M = quantize_rows(x_MK)
    sum_MN = (x_codes_MK.double() @ codes_NK.double().T).float()
    out_MN = sum_MN * x_scale_M.unsqueeze(-1) * scale_N.float()
    return out_MN if bias_N is None else out_MN + bias_N.float()


def _fp8_product(x_MK, codes_NK, scale, bias_N):
    """As `matmul`, with fp8 codes: per-token activations, a scale a row or a tensor."""
    x_codes_MK, x_scale_M = quantize_fp8_tokens(x_MK)
    sum_MN = (x_codes_MK.double() @ codes_NK.double().T).float()
    out_MN = sum_MN * x_scale_M.unsqueeze(-1) * scale
    return out_MN if bias_N is None else out_MN + bias_N.float()


def _block_product(x_MK, codes_NK, scale_IJ, bias_N):
    """fp8 with a scale for every 128 activations of a token and for every 128x128 weights."""
    x_MK = round_trip_fp8_groups(x_MK)
    out_MN = (x_MK.double() @ dequantize(codes_NK, scale_IJ).double().T).float()
    return out_MN if bias_N is None else out_MN + bias_N.float()


def round_trip_fp8_groups(x_MK: torch.Tensor) -> torch.Tensor:
    """What activations (M, K) are, in float32, once they are fp8 with a scale for every 128 of a token."""
    length = x_MK.shape[1]
    groups_MJB = F.pad(x_MK, (0, -length % BLOCK)).unflatten(-1, (-1, BLOCK))
    return dequantize(*quantize_fp8_tokens(groups_MJB)).flatten(-2)[:, :length]


def _int4_product(x_MK, codes_NK, scale_NG, bias_N):
    """Activations as they are, weights as BF16(code * scale)."""
    w_NK = dequantize(codes_NK, scale_NG).to(torch.bfloat16)
    out_MN = (x_MK.double() @ w_NK.double().T).float()
    return out_MN if bias_N is None else out_MN + bias_N.float()


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    scheme: Scheme = SCHEMES["int8"],
) -> torch.Tensor:
    """A mixture of SwiGLU experts, in float32 (M, K): sum over t of weight * down(silu(gate(x)) * up(x)).

    Args:
        weight_MT: routing weight of each of a token's experts.
        expert_MT: their indices into E; an index outside [0, E) contributes nothing (an expert of another rank).
        w13_codes_ENK: gate rows, then up rows (N = 2 * intermediate size).
        w2_codes_EKN: down projection (N = intermediate size).
        scheme: of codes and scales, stacked as `quantize` returns them.
    """
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_codes_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = product(x_MK[token], w13_codes_ENK[expert], w13_scale_EN[expert], scheme).chunk(2, dim=-1)
        down = product(F.silu(gate) * up, w2_codes_EKN[expert], w2_scale_EK[expert], scheme)
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK
