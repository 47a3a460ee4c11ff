"""Buffers of a quantized weight, their row layout, and the GEMM that uses them, on every device."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from ascend_quant.schemes import SCHEMES, Scheme, definition_of

CODES = {  # the dtypes that codes have while they are one to an element, by `Scheme.codes`
    scheme.codes: getattr(torch, definition_of(scheme).codes_dtype) for scheme in SCHEMES.values() if scheme.quantized
}


class WeightLayout(Protocol):
    """The memory layout of a resident tensor whose rows are not contiguous.

    Attributes:
        tensor: what the engine computes with.
        shape: (N, K) of all rows.
    """

    tensor: torch.Tensor
    shape: torch.Size

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """Return a copy of some rows."""

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows to their places, starting at row `first`."""

    def sampled(self) -> torch.Tensor | None:
        """A view of the memory that holds every SAMPLE-th row, and perhaps others; None where there is no such."""


class RefreshedLayout(WeightLayout, Protocol):
    """A layout with derived buffers that kernels read in another order than the refit writes."""

    def refresh(self) -> None:
        """Update the derived buffers, once per refit."""


class Storage(NamedTuple):
    """The buffers of one weight or stacked weights, whose addresses never change.

    Attributes:
        codes: what the engine computes with.
        scale: as the refit writes it, see `oracle.quantize`.
        served_scale: as the engine reads it; often the same tensor.
        layout: puts rows of codes in their places, if they do not lie in `codes` as a checkpoint has them.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    served_scale: torch.Tensor
    layout: WeightLayout | None = None


def rows_as_they_are(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Codes (.., N, K) side by side, and the scales that the scheme's definition says a weight of this shape has.

    Raises:
        UnregisteredScheme: a scheme that nobody registered.
    """
    definition, (*stack, rows, length) = definition_of(scheme), shape
    codes = torch.zeros(shape, dtype=getattr(torch, definition.codes_dtype))
    dtype, scales = definition.scales(rows, length)
    scale = torch.zeros(*stack, *scales, dtype=getattr(torch, dtype))
    return Storage(codes, scale, scale)


def laid_out(layout: WeightLayout, served_scale: torch.Tensor) -> Storage:
    """int4 codes where `layout` has them."""
    return Storage(layout.tensor, layout.scales, served_scale, layout)


class Serving(NamedTuple):
    """A scheme's GEMMs on one device.

    Attributes:
        linear: (x, codes, served scale, bias) -> x @ w.T + bias, in x's dtype.
        experts: (x, weight, expert, w13's codes and served scale, w2's, local experts) -> as `oracle.experts`.
        by: what multiplies, for people.
        storage: (scheme, shape (.., N, K)) -> the buffers that these compute with, where the backend asks for it here.
    """

    linear: Callable[..., torch.Tensor]
    experts: Callable[..., torch.Tensor]
    by: str
    storage: Callable[[Scheme, tuple[int, ...]], Storage] = rows_as_they_are
