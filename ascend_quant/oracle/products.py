"""What layers compute with quantized weights, as the scheme's file in `schemes/` defines it."""

import torch
import torch.nn.functional as F

from ascend_quant.schemes import SCHEMES, Scheme, definition_of

INT8 = SCHEMES["int8"]


def product(
    x_MK: torch.Tensor,
    codes_NK: torch.Tensor,
    scale: torch.Tensor,
    scheme: Scheme,
    bias_N: torch.Tensor | None = None,
) -> torch.Tensor:
    """x_MK @ w_NK.T + bias_N of a scheme, in float32 (M, N); codes and scales as `quantize` returns them.

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
    """
    return definition_of(scheme).product(x_MK, codes_NK, scale, bias_N)


def matmul(
    x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
) -> torch.Tensor:
    """The W8A8 product x_MK @ w_NK.T + bias_N of int8, in float32 (M, N)."""
    return product(x_MK, codes_NK, scale_N, INT8, bias_N)


def experts(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_codes_ENK: torch.Tensor,
    w13_scale_EN: torch.Tensor,
    w2_codes_EKN: torch.Tensor,
    w2_scale_EK: torch.Tensor,
    scheme: Scheme = INT8,
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
