"""Buffers of a quantized weight, their row layout, and the GEMM that reads them, on every device."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch

from ascend_quant.schemes import SCHEMES, Scheme, definition_of

CODES = {  # dtype of unpacked codes, by `Scheme.codes`
    scheme.codes: getattr(torch, definition_of(scheme).codes_dtype) for scheme in SCHEMES.values() if scheme.quantized
}


class WeightLayout(Protocol):
    """The memory layout of a resident tensor whose rows are not contiguous.

    Attributes:
        tensor: the buffer that the engine's kernels read.
        shape: (N, K) of all rows.
    """

    tensor: torch.Tensor
    shape: torch.Size

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """Return a copy of some rows."""

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Write rows, starting at row `first`."""

    def sampled(self) -> torch.Tensor | None:
        """Return a view of the memory that contains every SAMPLE-th row, possibly with others; None without one."""


class RefreshedLayout(WeightLayout, Protocol):
    """A layout with derived buffers that kernels read in another order than the refit writes."""

    def refresh(self) -> None:
        """Update the derived buffers, once per refit."""


class Storage(NamedTuple):
    """The buffers of one weight or of stacked weights, whose addresses never change.

    Attributes:
        codes: the buffer that the engine's kernels read.
        scale: the scale that the refit writes, see `oracle.quantize`.
        served_scale: the scale that the engine reads; often the same tensor.
        layout: writes rows of codes, if their layout in `codes` differs from a checkpoint's.
    """

    codes: torch.Tensor
    scale: torch.Tensor
    served_scale: torch.Tensor
    layout: WeightLayout | None = None


def rows_as_they_are(scheme: Scheme, shape: tuple[int, ...]) -> Storage:
    """Allocate contiguous codes (.., N, K), and the scales that the scheme defines for a weight of this shape.

    Raises:
        UnregisteredScheme: the scheme is not registered.
    """
    definition, (*stack, rows, length) = definition_of(scheme), shape
    codes = torch.zeros(shape, dtype=getattr(torch, definition.codes_dtype))
    dtype, scales = definition.scales(rows, length)
    scale = torch.zeros(*stack, *scales, dtype=getattr(torch, dtype))
    return Storage(codes, scale, scale)


def laid_out(layout: WeightLayout, served_scale: torch.Tensor) -> Storage:
    """Return the storage of int4 codes in `layout`."""
    return Storage(layout.tensor, layout.scales, served_scale, layout)


class Serving(NamedTuple):
    """A scheme's GEMMs on one device.

    Attributes:
        linear: (x, codes, served scale, bias) -> x @ w.T + bias, in x's dtype.
        experts: (x, weight, expert, w13's codes and served scale, w2's, local experts) -> result of `oracle.experts`.
        by: name of the kernel, for messages.
        storage: (scheme, shape (.., N, K)) -> the buffers that these read, if they differ from the backend's default.
    """

    linear: Callable[..., torch.Tensor]
    experts: Callable[..., torch.Tensor]
    by: str
    storage: Callable[[Scheme, tuple[int, ...]], Storage] = rows_as_they_are
