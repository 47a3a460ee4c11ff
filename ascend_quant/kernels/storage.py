"""What a quantized weight is kept in, and what computes with it: the same words on every device."""

from collections.abc import Callable
from typing import NamedTuple

import torch

from ascend_quant.kernels.moves import Place
from ascend_quant.oracle import BLOCK
from ascend_quant.schemes import Scheme

CODES = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}


class Serving(NamedTuple):
    """A scheme's products on one device.

    Attributes:
        linear: (x, codes, served scale, bias) -> x @ w.T + bias, in x's dtype.
        experts: (x, weight, expert, w13's codes and served scale, w2's, local experts) -> as `oracle.experts`.
        by: what multiplies, for people.
    """

    linear: Callable[..., torch.Tensor]
    experts: Callable[..., torch.Tensor]
    by: str


class Storage(NamedTuple):
    """The buffers of one weight or stack of weights, whose addresses stay.

    Attributes:
        codes: what the engine computes with.
        scale: as the refit writes it, see `oracle.quantize`.
        served_scale: as the engine reads it; often the same tensor.
        place: where rows of codes are put, if they do not lie in `codes` as a checkpoint has them.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    served_scale: torch.Tensor
    place: Place | None = None


def rows_as_they_are(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Codes (.., N, K) side by side, with a float32 scale a row (.., N, 1) or a block (.., N / 128, K / 128).

    A tensor's one scale is kept for each of its rows: serving kernels take a vector, and a parameter may consist of
    several tensors.
    """
    codes = torch.zeros(shape, dtype=CODES[scheme.codes])
    *stack, rows, length = shape
    scales = (-(-rows // BLOCK), -(-length // BLOCK)) if scheme.shares == "block" else (rows, 1)
    scale = torch.zeros(*stack, *scales, dtype=torch.float32)
    return Storage(codes, scale, scale)


def in_place(place: Place, served_scale: torch.Tensor) -> Storage:
    """int4 codes where `place` has them."""
    return Storage(place.tensor, place.scales, served_scale, place)
