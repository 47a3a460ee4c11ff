"""Rules of a profile: the smoothing (SmoothQuant) factors and scales of each parameter.

With w_NK the trainer's BF16 weight, in float32, or rounded after each factor as the checkpoint's tool did:

    x_NK = w_NK * input_factor_K * output_factor_N[:, None]

A quantized parameter is x_NK in codes: with a scale of its own, absmax / 127 of each row, or with the frozen `scale_N`
of the checkpoint. A scaled one (a norm, a bias, a router behind a smoothed norm) is x, rounded to BF16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

PARTS = ("input_factor", "output_factor", "scale")
ARITHMETICS = ("float32", "bfloat16", "bfloat16_quotient")  # see arithmetic.py


@dataclass(frozen=True)
class Rule:
    """The rule for one parameter: its factors, and its scales where it is quantized.

    Attributes:
        quantized: whether it becomes codes; else it keeps its dtype.
        input_factor: float32 (K), or (N) for a vector; None for all ones.
        output_factor: float32 (N); None for all ones.
        scale: float32 (N), the W8A8 checkpoint's; None if the parameter is not quantized.
    """

    quantized: bool
    input_factor: torch.Tensor | None = None
    output_factor: torch.Tensor | None = None
    scale: torch.Tensor | None = None

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors among `PARTS` that the rule has."""
        return {part: tensor for part in PARTS if (tensor := getattr(self, part)) is not None}


@dataclass(frozen=True)
class Profile:
    """The rules of a model, by the names of its checkpoint's parameters.

    Attributes:
        scheme: that of the quantized parameters: int8, or fp8 (names alone, no factors).
        rules: of all parameters but those that stay as they are.
        notes: where the profile comes from, for people.
        arithmetic: how the checkpoint's tool rounded, one of `arithmetic.ARITHMETICS`; with frozen scales only the same
            rounding gives all of its codes.
    """

    scheme: str
    rules: Mapping[str, Rule]
    notes: Mapping[str, object] = field(default_factory=dict)
    arithmetic: str = "float32"
