"""The rounding of quantization tools, and its inverse: the weights that round to a given code.

    float32            x = w * input_factor * output_factor                code = round(x / scale)
    bfloat16           x = bf16(bf16(w * input_factor) * output_factor)    code = round(x / scale)
    bfloat16_quotient  the same x                                          code = round(bf16(x / scale))

llm-compressor smooths and quantizes in the dtype of the model it was given. compressed-tensors 0.19 divides in that
dtype (`_quantize` in quantization/lifecycle/forward_helpers.py), in float32 on a GPU (its Triton kernel): a BF16 model
gives the third form on a CPU and in releases before that kernel, the second on a GPU, a float32 model the first.
Rounding the quotient twice changes the code of about one weight in ten. Refits use the first two forms.

All codes are clamped to [-128, 127]. Shape suffixes: N output channels, K input channels.
"""

import torch

from ascend_quant import oracle
from ascend_quant.profile.rules import Rule

LOWEST, HIGHEST = -128, 127
HALF_STEP = 1 << 15  # half the distance between BF16 numbers, in float32 bits
MARGIN = 2.0**-22  # bounds the float32 rounding of the limits below


def of_refits(arithmetic: str) -> str:
    """Return the arithmetic that a refit uses for a profile of this arithmetic."""
    return "float32" if arithmetic == "float32" else "bfloat16"


def smoothed(w_NK: torch.Tensor, rule: Rule, arithmetic: str = "float32") -> torch.Tensor:
    """Return x in float32: a weight, or vector (N), after a rule's factors."""
    return oracle.smoothed(w_NK, rule.input_factor, rule.output_factor, rounded=arithmetic != "float32")


def quotients(x: torch.Tensor, scale: torch.Tensor, arithmetic: str = "float32") -> torch.Tensor:
    """Return x / scale, 0 if the scale is 0; `scale` is broadcast to x."""
    y = torch.where(scale == 0, 0.0, x / scale)
    return y.to(torch.bfloat16).float() if arithmetic == "bfloat16_quotient" else y


def requantize(x_NK: torch.Tensor, scale_N: torch.Tensor, arithmetic: str = "float32") -> torch.Tensor:
    """Return codes of x with given scales, as float32."""
    return quotients(x_NK, scale_N.unsqueeze(-1), arithmetic).round().clamp(LOWEST, HIGHEST)


def magnitudes(codes: torch.Tensor, scale: torch.Tensor, arithmetic: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and the largest |x|, before any rounding of x, that becomes |code|.

    Args:
        codes: any shape.
        scale: float32, broadcast to the codes; if it is 0, every x is possible.

    Returns:
        Two float32 tensors. A code that may have been clamped has no upper bound.
    """
    code = codes.float().abs()
    least, largest = code - 0.5, code + 0.5
    if arithmetic == "bfloat16_quotient":  # halves are BF16 numbers that round to even, so they never become odd codes
        odd = (codes.int() & 1).bool()
        least = torch.where(odd, below(from_bits(bits(least) + 2 * HALF_STEP)), below(least))
        largest = torch.where(odd, above(from_bits(bits(largest) - 2 * HALF_STEP)), above(largest))
    least, largest = least.clamp(min=0) * scale, largest * scale
    if arithmetic != "float32":
        least = below(_nearest(up(least), -1, codes, scale, arithmetic))
        largest = above(_nearest(down(largest), 1, codes, scale, arithmetic))
    least = torch.where(code == 0, 0.0, least * (1 - MARGIN))
    unbounded = (codes >= HIGHEST) | (codes <= LOWEST) | (scale == 0)
    return torch.where(scale == 0, 0.0, least), torch.where(unbounded, torch.inf, largest * (1 + MARGIN))


def _nearest(end: torch.Tensor, outwards: int, codes: torch.Tensor, scale: torch.Tensor, arithmetic: str):
    """Return the last BF16 number that becomes |code|: `end`, or a neighbour, as it is a rounded product."""
    most = torch.where(codes < 0, -LOWEST, HIGHEST)

    def becomes(x: torch.Tensor) -> torch.Tensor:
        return torch.minimum(quotients(x, scale, arithmetic).round(), most) == codes.float().abs()

    outer, inner = (from_bits((bits(end) + step * 2 * HALF_STEP).clamp(min=0)) for step in (outwards, -outwards))
    return torch.where(becomes(outer), outer, torch.where(becomes(end) | ~becomes(inner), end, inner))


def rounded_magnitudes(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the smallest and largest |x| that becomes |value| in the dtype of `values`: BF16, or float32."""
    size = values.float().abs()
    if values.dtype == torch.bfloat16:
        least, largest = below(size), above(size)
    else:
        least, largest = size, size
    return torch.where(size == 0, 0.0, least * (1 - MARGIN)), largest * (1 + MARGIN)


def above(number: torch.Tensor) -> torch.Tensor:
    """Return the midpoints between positive BF16 numbers (stored as float32) and the next larger ones."""
    return from_bits(bits(number) + HALF_STEP)


def below(number: torch.Tensor) -> torch.Tensor:
    """Return the midpoints to the next smaller BF16 numbers."""
    return from_bits((bits(number) - HALF_STEP).clamp(min=0))


def down(number: torch.Tensor) -> torch.Tensor:
    """Return the largest BF16 numbers that are at most the given positive numbers."""
    return from_bits(bits(number) & -2 * HALF_STEP)


def up(number: torch.Tensor) -> torch.Tensor:
    """Return the smallest BF16 numbers that are at least the given positive numbers."""
    return from_bits(bits(number) + (2 * HALF_STEP - 1) & -2 * HALF_STEP)


def bits(number: torch.Tensor) -> torch.Tensor:
    """Return the bits of a float32, which sort like positive numbers."""
    return number.float().contiguous().view(torch.int32)


def from_bits(pattern: torch.Tensor) -> torch.Tensor:
    """Return the float32 with these bits."""
    return pattern.view(torch.float32)
