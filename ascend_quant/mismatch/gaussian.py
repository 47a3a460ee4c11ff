"""The error that a scheme gives a layer of Gaussian weights and inputs: what a healthy layer may have.

Through the same products as the engine's layers (layer_errors.py, so the oracle), on drawn data. A layer's number of
outputs has no part: each has a scale of its own (or a block, or a rounding relative to the element). What follows a
gate is no Gaussian but SiLU(g) * u of two, whose tails are heavier: `down_proj` is compared with that.
"""

from functools import cache

import torch
import torch.nn.functional as F

from ascend_quant.mismatch.layer_errors import EXACT, mixture, product
from ascend_quant.schemes import get_scheme

TOKENS, OUTPUTS = 64, 128


@cache
def linear_error(scheme: str, inputs: int, gated: bool = False) -> float:
    """The root mean square over tokens of ||e|| / ||y|| of a linear layer.

    Args:
        inputs: K, as one rank holds them.
        gated: the inputs are SiLU(g) * u.
    """
    generator = torch.Generator().manual_seed(inputs)
    x_MK, up_MK = torch.randn(2, TOKENS, inputs, generator=generator)
    x_MK = (F.silu(x_MK) * up_MK if gated else x_MK).bfloat16()
    w_NK = torch.randn(OUTPUTS, inputs, generator=generator).bfloat16()
    return _relative(*(product(x_MK, w_NK, one) for one in (get_scheme(scheme), EXACT)))


@cache
def expert_error(scheme: str, hidden: int, width: int) -> float:
    """The same of one SwiGLU expert: gate and up of `hidden` inputs, down of `width`, as one rank holds them."""
    generator = torch.Generator().manual_seed(hidden * width)
    x_MK = torch.randn(TOKENS, hidden, generator=generator).bfloat16()
    w13_ENK = (torch.randn(1, 2 * width, hidden, generator=generator) / hidden**0.5).bfloat16()
    w2_EKN = torch.randn(1, hidden, width, generator=generator).bfloat16()
    routed = torch.ones(TOKENS, 1), torch.zeros(TOKENS, 1, dtype=torch.long)
    return _relative(*(mixture(x_MK, *routed, w13_ENK, w2_EKN, one) for one in (get_scheme(scheme), EXACT)))


def _relative(rounded_MN: torch.Tensor, exact_MN: torch.Tensor) -> float:
    ratios = (rounded_MN - exact_MN).square().sum(-1) / exact_MN.square().sum(-1)
    return ratios.mean().sqrt().item()
