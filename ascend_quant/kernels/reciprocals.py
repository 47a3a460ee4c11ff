"""The oracle's int8 codes and scales without a division, for devices whose float32 division may not be IEEE's.

A row's largest magnitude is a BF16 number, 2**e * (128 + m) / 128, and everything scales with 2**e. So its scale is an
entry of a table of 128, correctly rounded on the host, times 2**e; and so is the factor f with round(x * f) equal to
round_half_even(fl(x / scale)) for every BF16 |x| up to the largest.

Why one product will do: 127 x / absmax is a tie k + 1/2 only if the scale is a power of two, where f is exact, or if
|x| = absmax / 2; every other x is at least 1/510 of itself away from one. For m other than 126, f is moved by 2**-20
to the side on which that one x lies. What the device must give: exact int32 sums and shifts, float32 products with
relative errors well below 2**-20, and float32 sums that round half to even.
"""

from functools import cache

import torch

from ascend_quant import oracle

NUDGE = 2.0**-20
MAGIC, MAGIC_BITS = 12582912.0, 0x4B400000  # 1.5 * 2**23: adding it rounds half to even


def scale_and_factor(absmax_N: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows' scales and the factors that turn their values into codes.

    Args:
        absmax_N: float32 values of BF16 numbers; NaN or Inf give numbers without a meaning.

    Returns:
        float32 (N) each; both 0 where `absmax_N` counts as zero.
    """
    scales, factors = _tables(absmax_N.device)
    bits = absmax_N.view(torch.int32)
    mantissa = (bits >> 16) & 0x7F
    power = ((bits >> 23) - 127) << 23
    counts = absmax_N >= oracle.TINY
    scale = torch.where(counts, (scales[mantissa] + power).view(torch.float32), 0.0)
    return scale, torch.where(counts, (factors[mantissa] - power).view(torch.float32), 0.0)


def codes_of(values_NK: torch.Tensor, factor_N: torch.Tensor) -> torch.Tensor:
    """int8 codes (N, K) of BF16 values no larger than the magnitude that `factor_N` was made for."""
    product_NK = values_NK.float() * factor_N.unsqueeze(-1)
    return ((product_NK + MAGIC).view(torch.int32) - MAGIC_BITS).to(torch.int8)


@cache
def _tables(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Bits of the scale and of the factor, int32 (128) each, of the magnitudes (128 + m) / 128."""
    absmax = torch.arange(128, 256, dtype=torch.float32) / 128
    codes, scale = oracle.quantize_rows(torch.stack([absmax, absmax / 2], dim=1))
    upwards = codes[:, 1] == 64  # 63.5 or a little more
    nudged = (1 / scale.double() * torch.where(upwards, 1 + NUDGE, 1 - NUDGE)).float()
    exact = torch.frexp(scale).mantissa == 0.5  # a power of two
    factor = torch.where(exact, 1 / scale, nudged)
    return scale.view(torch.int32).to(device), factor.view(torch.int32).to(device)
