"""Rules of a profile: the smoothing (SmoothQuant) factors and scales of each parameter.

Let w_NK be the trainer's BF16 weight; products are computed in float32, or rounded after each factor as in the
checkpoint's tool:

    x_NK = w_NK * input_factor_K * output_factor_N[:, None]

A quantized parameter is x_NK quantized with its own scale, absmax / 127 per row, or with the checkpoint's frozen
`scale_N`. A scaled parameter (a norm, a bias, a router after a smoothed norm) is x rounded to BF16.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

PARTS = ("input_factor", "output_factor", "scale")
ARITHMETICS = ("float32", "bfloat16", "bfloat16_quotient")  # see arithmetic.py


@dataclass(frozen=True)
class Rule:
    """The rule for one parameter: its factors, and its scales if it is quantized.

    Attributes:
        quantized: whether the parameter is quantized; otherwise it keeps its dtype.
        input_factor: float32 (K), or (N) for a vector; None means ones.
        output_factor: float32 (N); None means ones.
        scale: float32 (N), the W8A8 checkpoint's scale; None if the parameter is not quantized.
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
        scheme: scheme of the quantized parameters: int8, or fp8 (only names, no factors).
        rules: rules of all parameters that change.
        notes: description of the profile's origin, for humans.
        arithmetic: how the checkpoint's tool rounded, one of `arithmetic.ARITHMETICS`; with frozen scales only the same
            rounding gives all of its codes.
    """

    scheme: str
    rules: Mapping[str, Rule]
    notes: Mapping[str, object] = field(default_factory=dict)
    arithmetic: str = "float32"
