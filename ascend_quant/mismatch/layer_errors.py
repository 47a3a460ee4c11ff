"""What quantization does to one layer's output, in plain PyTorch, float32, on any device.

The same inputs go through the layer's weights as they are and through the oracle's codes and scales; both products are
dequantized float32, so the difference is that of quantization alone. A few rows, or one expert, at a time.

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ascend_quant import oracle

ELEMENTS = 1 << 23  # of a weight in float32 at a time


@dataclass(frozen=True)
class Rounding:
    """What a scheme does to values.

    Attributes:
        weight: (N, K) -> float32 (N, K), given the largest magnitude (N) of each whole row, or None.
        activation: (M, K) -> float32 (M, K).
        row_bytes: what a row of K elements takes as codes and scale, given K.
    """

    weight: Callable[[torch.Tensor, torch.Tensor | None], torch.Tensor]
    activation: Callable[[torch.Tensor], torch.Tensor]
    row_bytes: Callable[[int], int]


ROUNDINGS = {
    "int8": Rounding(
        weight=lambda w_NK, absmax_N: oracle.dequantize(*oracle.quantize_weight(w_NK, absmax_N)),
        activation=lambda x_MK: oracle.dequantize(*oracle.quantize_rows(x_MK)),
        row_bytes=lambda length: length + 4,
    ),
}
EXACT = Rounding(
    weight=lambda w_NK, absmax_N: w_NK.float(),
    activation=lambda x_MK: x_MK.float(),
    row_bytes=lambda length: 2 * length,
)


def get_rounding(scheme: str) -> Rounding:
    """That of a quantized scheme.

    Raises:
        ValueError: layer errors are not defined for it.
    """
    if scheme not in ROUNDINGS:
        raise ValueError(f"no layer errors for scheme {scheme!r}; there are for: {', '.join(ROUNDINGS)}")
    return ROUNDINGS[scheme]


def product(
    x_MK: torch.Tensor, w_NK: torch.Tensor, rounding: Rounding, absmax_N: torch.Tensor | None = None
) -> torch.Tensor:
    """x_MK @ w_NK.T in float32 (M, N), both rounded.

    Args:
        absmax_N: of the whole rows, where `w_NK` is a slice of K.
    """
    x_MK = rounding.activation(x_MK)
    out_MN = x_MK.new_empty(x_MK.shape[0], w_NK.shape[0])
    step = max(1, ELEMENTS // w_NK.shape[1])
    for start in range(0, w_NK.shape[0], step):
        rows = slice(start, start + step)
        absmax = None if absmax_N is None else absmax_N[rows]
        out_MN[:, rows] = x_MK @ rounding.weight(w_NK[rows], absmax).T
    return out_MN


def mixture(
    x_MK: torch.Tensor,
    weight_MT: torch.Tensor,
    expert_MT: torch.Tensor,
    w13_ENK: torch.Tensor,
    w2_EKN: torch.Tensor,
    rounding: Rounding,
    w2_absmax_EK: torch.Tensor | None = None,
) -> torch.Tensor:
    """A mixture of SwiGLU experts as in `oracle.experts`, in float32 (M, K), from weights that are not yet codes."""
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = product(x_MK[token], w13_ENK[expert], rounding).chunk(2, dim=-1)
        absmax = None if w2_absmax_EK is None else w2_absmax_EK[expert]
        down = product(F.silu(gate) * up, w2_EKN[expert], rounding, absmax)
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK


def extra_bytes(weight: torch.Tensor, rounding: Rounding) -> int:
    """What a weight (..., K) takes more in its dtype than as codes and scales."""
    length = weight.shape[-1]
    return weight.nbytes - weight.numel() // length * rounding.row_bytes(length)
