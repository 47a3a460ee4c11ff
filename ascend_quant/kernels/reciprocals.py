"""The oracle's int8 quantization without a division, for devices whose float32 division is not IEEE.

A row's absmax is one of 32,768 BF16 numbers. Its scale, and the factor f with round(x * f) = round_half_even(fl(x /
scale)) for every BF16 |x| up to absmax, are looked up in tables computed on the host.

Why one product suffices: 127 x / absmax is a tie k + 1/2 only if the scale is a power of two, where f is exact, or if
|x| = absmax / 2; every other x is at least 1/510 of itself away from one. If the scale is not a power of two, f is
moved by 2**-20 to the side on which that one x lies. The device must provide float32 products with relative errors well
below 2**-20, and float32 sums that round half to even. Shifts are avoided, since Atlas A2 and A3 run them on the AI
CPU.
"""

from functools import cache

import torch

from ascend_quant import oracle

NUDGE = 2.0**-20
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2**23: adding it rounds half to even


def scale_and_factor(absmax_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows' scales and the factors that quantize their values, float32 (N) each.

    Args:
        absmax_N: BF16 without -0.0; the scale is Inf or NaN if absmax is (but not for a negative NaN).
    """
    scales, factors = _tables(absmax_N.device)
    magnitude_N = absmax_N.view(torch.int16).to(torch.int32).clamp_(min=0)  # a NaN may be negative
    return torch.index_select(scales, 0, magnitude_N), torch.index_select(factors, 0, magnitude_N)


def codes_of(values_NK: torch.Tensor, factor_N: torch.Tensor) -> torch.Tensor:
    """Return int8 codes (N, K) of BF16 values whose magnitudes are at most the absmax of `factor_N`."""
    product_NK = values_NK.float() * factor_N.unsqueeze(-1)
    return ((product_NK + MAGIC).view(torch.int32) - MAGIC_BITS).to(torch.int8)


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scale and factor, float32 (32768) each, of every BF16 magnitude, indexed by its bits."""
    absmax = torch.arange(32768, dtype=torch.int32, device="cpu").to(torch.int16).view(torch.bfloat16).float()
    codes, scale = oracle.quantize_rows(torch.stack([absmax, absmax / 2], dim=1))
    upwards = codes[:, 1] == 64  # 63.5 or slightly more
    nudged = (1 / scale.double() * (1 + NUDGE * (2 * upwards.double() - 1))).float()
    exact = torch.frexp(scale).mantissa == 0.5  # a power of two
    factor = torch.where(exact, 1 / scale, nudged)
    factor = torch.where((scale > 0) & torch.isfinite(scale), factor, 0.0)
    return scale.to(device), factor.to(device)
