"""What quantization does to one layer's output, in plain PyTorch, float32, on any device.

The same inputs go through the layer's weights as they are (scheme bf16) and through the oracle's codes and scales; both
products are dequantized float32, so the difference is that of quantization alone. A few rows, or one expert, at a time.

A weight is taken as a rank of the engine holds it, fused: with fp8_tensor, q, k and v (gate and up) have one scale
here, and in the engine one each. That makes little difference: fp8 rounds most elements relative to their own size.

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token.
"""

import math
from collections.abc import Iterator

import torch
import torch.nn.functional as F

from ascend_quant.oracle import BLOCK
from ascend_quant.schemes import SCHEMES, Scheme, definition_of

ELEMENTS = 1 << 23  # of a weight in float32 at a time
EXACT = SCHEMES["bf16"]


def rounded_weight(w_NK: torch.Tensor, scheme: Scheme, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
    """What rows of a weight become, in float32 (N, K).

    Args:
        w_NK: whole blocks of rows, where blocks share scales.
        absmax_N: the largest magnitude of all that shares a scale with each row, where that is more than the row. Where
            blocks or groups share scales, it has no part.
    """
    return definition_of(scheme).rounded(w_NK, absmax_N)


def rounded_activation(x_MK: torch.Tensor, scheme: Scheme) -> torch.Tensor:
    """What tokens become, in float32 (M, K)."""
    return definition_of(scheme).activation(x_MK).float()


def product(
    x_MK: torch.Tensor, w_NK: torch.Tensor, scheme: Scheme, absmax_N: torch.Tensor | None = None
) -> torch.Tensor:
    """x_MK @ w_NK.T in float32 (M, N), both rounded.

    Args:
        absmax_N: float32, the largest magnitudes of the whole rows, where `w_NK` is a slice of K.
    """
    if scheme.shares == "tensor":
        largest = w_NK.abs().amax() if absmax_N is None else absmax_N.amax()
        absmax_N = largest.expand(w_NK.shape[0])
    x_MK = rounded_activation(x_MK, scheme)
    out_MN = x_MK.new_empty(x_MK.shape[0], w_NK.shape[0])
    step = BLOCK * max(1, ELEMENTS // (BLOCK * w_NK.shape[1]))
    for start in range(0, w_NK.shape[0], step):
        rows = slice(start, start + step)
        absmax = None if absmax_N is None else absmax_N[rows]
        out_MN[:, rows] = x_MK @ rounded_weight(w_NK[rows], scheme, absmax).T
    return out_MN


def mixture(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    scheme: Scheme,
    w2_absmax_EK: torch.Tensor | None = None,
) -> torch.Tensor:
    """A mixture of SwiGLU experts as in `oracle.experts`, in float32 (M, K), from weights that are not yet codes."""
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for _, token, part in expert_outputs(x_MK, weight_MT, expert_MT, w13_ENK, w2_EKN, scheme, w2_absmax_EK):
        out_MK.index_add_(0, token, part)
    return out_MK


def mixtures(
    x_MK: torch.Tensor, *experts: torch.Tensor, scheme: Scheme, w2_absmax_EK: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, dict[int, torch.Tensor]]:
    """The rounded and the exact mixture, and for each expert with tokens the ratios ||e||^2 / ||y||^2 of its output.

    Args:
        experts: weight_MT, expert_MT, w13_ENK and w2_EKN, as in `mixture`.
    """
    out_2MK = torch.zeros(2, *x_MK.shape, dtype=torch.float32, device=x_MK.device)
    ratios = {}
    rounded = expert_outputs(x_MK, *experts, scheme, w2_absmax_EK)
    for (expert, token, part), (_, _, exact) in zip(rounded, expert_outputs(x_MK, *experts, EXACT), strict=True):
        out_2MK[0].index_add_(0, token, part)
        out_2MK[1].index_add_(0, token, exact)
        norm = exact.square().sum(-1)
        ratios[expert] = ((part - exact).square().sum(-1) / norm)[norm > 0]
    return *out_2MK, ratios


def expert_outputs(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    scheme: Scheme,
    w2_absmax_EK: torch.Tensor | None = None,
) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
    """Each expert that has tokens, which they are, and its weighted outputs for them in float32 (tokens, K)."""
    for expert in range(w13_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = product(x_MK[token], w13_ENK[expert], scheme).chunk(2, dim=-1)
        absmax = None if w2_absmax_EK is None else w2_absmax_EK[expert]
        down = product(F.silu(gate) * up, w2_EKN[expert], scheme, absmax)
        yield expert, token, down * weight_MT[token, slot].float().unsqueeze(-1)


def extra_bytes(weight: torch.Tensor, scheme: Scheme) -> int:
    """What a weight (.., N, K) takes more in its dtype than resident in a quantized scheme (kernels/storage.py).

    Copies of scales that some kernels read in another order or dtype are not counted.
    """
    *stack, rows, length = weight.shape
    definition = definition_of(scheme)
    dtype, shape = definition.scales(rows, length)
    matrix = rows * length * definition.bits // 8 + math.prod(shape) * getattr(torch, dtype).itemsize
    return weight.nbytes - math.prod(stack) * matrix
