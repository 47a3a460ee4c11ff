"""bf16: weights are not quantized, but have a refit's checks and receipts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_quant.schemes.definition import Definition
from ascend_quant.schemes.registry import register
from ascend_quant.schemes.scheme import Scheme

if TYPE_CHECKING:
    import torch


class Bf16(Definition):
    """A scheme without codes and scales."""

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Raise ValueError, since this scheme does not quantize."""
        raise ValueError(f"scheme {self.scheme.name} does not quantize weights")

    def rounded(self, w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
        return w_NK.float()


register(
    Bf16(Scheme("bf16", None, None, "weights as they are sent; the same refit checks and receipts, no quantization"))
)
