"""Quantization error of one layer's output, in plain PyTorch, float32, on any device; and a ranking of layers.

The same inputs are multiplied by the unquantized weights (scheme bf16) and by the oracle's codes and scales, both in
float32, so the difference is due only to quantization. A few rows, or one expert, are processed at a time.

Weights are fused as on a rank of the engine: with fp8_tensor, q, k and v (gate and up) share one scale here, but have
one each in the engine. This makes little difference, since the rounding error of fp8 is relative for most elements.

Shape suffixes: E experts, M tokens, N output channels, K input channels, T experts per token, R ranks.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from ascend_quant.oracle import BLOCK
from ascend_quant.schemes import SCHEMES, Scheme, definition_of

ELEMENTS = 1 << 23  # elements of a weight that are float32 at a time
EXACT = SCHEMES["bf16"]


@dataclass(frozen=True)
class LayerError:
    """The quantization error of one layer, where e is the error added to its output y.

    Attributes:
        name: name of the layer, as in `ignore`.
        error: root mean square over tokens of ||e|| / ||y||.
        worst: largest ||e|| / ||y|| of a token.
        share: fraction of the sum of squared `error` over all layers.
        extra_bytes: additional bytes of the unquantized layer, over all ranks.
    """

    name: str
    error: float
    worst: float
    share: float
    extra_bytes: int


def ranked(ranks: Sequence[Sequence[dict[str, Any]]]) -> list[LayerError]:
    """Return the layers, the worst first, from the measurements of each rank (`watch.Layer.errors`).

    The squares of all ranks are summed. Tokens whose exact output is zero are ignored.
    """
    found = []
    for parts in zip(*ranks, strict=True):
        squares_2RM = torch.tensor([[part[key] for part in parts] for key in ("error", "norm")], dtype=torch.float64)
        error, norm = squares_2RM.sum(1)
        ratios = (error / norm)[norm > 0]
        if len(ratios):
            cost = sum(part["extra_bytes"] for part in parts)
            found.append((parts[0]["name"], ratios.mean().item(), ratios.max().item(), cost))
    total = sum(square for _, square, _, _ in found)
    layers = [
        LayerError(name, square**0.5, worst**0.5, square / total if total else 0.0, cost)
        for name, square, worst, cost in found
    ]
    return sorted(layers, key=lambda layer: layer.error, reverse=True)


def product(
    x_MK: torch.Tensor, w_NK: torch.Tensor, scheme: Scheme, absmax_N: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute x_MK @ w_NK.T in float32 (M, N), rounded and exact.

    Args:
        absmax_N: float32, absmax of the whole rows if `w_NK` is a slice of K; ignored if blocks or groups share scales.
    """
    definition = definition_of(scheme)
    if scheme.shares == "tensor":
        largest = w_NK.abs().amax() if absmax_N is None else absmax_N.amax()
        absmax_N = largest.expand(w_NK.shape[0])
    x_MK = definition.activation(x_MK).float()
    out_MN = x_MK.new_empty(x_MK.shape[0], w_NK.shape[0])
    step = BLOCK * max(1, ELEMENTS // (BLOCK * w_NK.shape[1]))  # whole blocks of rows, which share scales
    for start in range(0, w_NK.shape[0], step):
        rows = slice(start, start + step)
        absmax = None if absmax_N is None else absmax_N[rows]
        out_MN[:, rows] = x_MK @ definition.rounded(w_NK[rows], absmax).T
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
    """Compute a mixture of SwiGLU experts as `oracle.experts`, in float32 (M, K), from unquantized weights.

    Args:
        expert_MT: -1 for an expert of another rank.
        w2_absmax_EK: see `product`.
    """
    out_MK = torch.zeros(x_MK.shape, dtype=torch.float32, device=x_MK.device)
    for expert in range(w13_ENK.shape[0]):
        token, slot = (expert_MT == expert).nonzero(as_tuple=True)
        if token.numel() == 0:
            continue
        gate, up = product(x_MK[token], w13_ENK[expert], scheme).chunk(2, dim=-1)
        absmax = None if w2_absmax_EK is None else w2_absmax_EK[expert]
        down = product(F.silu(gate) * up, w2_EKN[expert], scheme, absmax)
        out_MK.index_add_(0, token, down * weight_MT[token, slot].float().unsqueeze(-1))
    return out_MK


def extra_bytes(weight: torch.Tensor, scheme: Scheme) -> int:
    """Return how many more bytes a weight (.., N, K) takes in its dtype than in a scheme (kernels/storage.py).

    Copies of scales in another order or dtype are not counted.
    """
    *stack, rows, length = weight.shape
    definition = definition_of(scheme)
    dtype, shape = definition.scales(rows, length)
    matrix = rows * length * definition.bits // 8 + math.prod(shape) * getattr(torch, dtype).itemsize
    return weight.nbytes - math.prod(stack) * matrix
