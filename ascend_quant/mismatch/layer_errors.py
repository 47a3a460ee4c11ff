"""Quantization error of one layer's output, in plain PyTorch, float32, on any device; and the layers, worst first.

The same inputs go through the layer's weights as they are (scheme bf16) and through the oracle's codes and scales; both
products are dequantized float32, so the difference is that of quantization alone. A few rows, or one expert, at a time.

A weight is taken as a rank of the engine holds it, fused: with fp8_tensor, q, k and v (gate and up) have one scale
here, and in the engine one each. That makes little difference: fp8 rounds most elements relative to their own size.

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

ELEMENTS = 1 << 23  # of a weight in float32 at a time
EXACT = SCHEMES["bf16"]


@dataclass(frozen=True)
class LayerError:
    """The quantization error of one layer, with e the error that is added to its output y.

    Attributes:
        name: as `ignore` takes it.
        error: the root mean square over tokens of ||e|| / ||y||.
        worst: the largest ||e|| / ||y|| of a token.
        share: of the sum of `error` squared over all layers.
        extra_bytes: what it costs to leave the layer in its dtype, over all ranks.
    """

    name: str
    error: float
    worst: float
    share: float
    extra_bytes: int


def ranked(ranks: Sequence[Sequence[dict[str, Any]]]) -> list[LayerError]:
    """The layers, the worst first, from what each rank saw of each (`watch.Layer.errors`).

    The squares of the ranks add up. A token whose exact output is zero says nothing.
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
    """x_MK @ w_NK.T in float32 (M, N), both rounded.

    Args:
        absmax_N: float32, the largest magnitudes of the whole rows, where `w_NK` is a slice of K. Where blocks or
            groups share scales, it has no part.
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
    """A mixture of SwiGLU experts as in `oracle.experts`, in float32 (M, K), from weights that are not yet codes.

    Args:
        expert_MT: -1 for an expert of another rank.
        w2_absmax_EK: as in `product`.
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
    """Return how many bytes more a weight (.., N, K) takes in its dtype than in a scheme (kernels/storage.py).

    Copies of scales that some kernels read in another order or dtype are not counted.
    """
    *stack, rows, length = weight.shape
    definition = definition_of(scheme)
    dtype, shape = definition.scales(rows, length)
    matrix = rows * length * definition.bits // 8 + math.prod(shape) * getattr(torch, dtype).itemsize
    return weight.nbytes - math.prod(stack) * matrix
