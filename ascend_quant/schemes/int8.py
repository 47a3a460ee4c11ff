"""int8, W8A8: scale = absmax / 127 per row, code = round_half_even(value / scale); activations per token, dynamic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_quant.schemes.definition import PER_TOKEN, Definition, Stored
from ascend_quant.schemes.registry import register
from ascend_quant.schemes.scheme import INT8_MAX, Scheme

if TYPE_CHECKING:
    import torch


class Int8(Definition):
    """int8 codes (..., N, K), float32 scales (..., N)."""

    codes_dtype, kind, largest, rounds = "int8", "int8", INT8_MAX, True
    stored = Stored(
        "int-quantized",
        "int",
        "channel",
        {"strategy": "token", "dynamic": True},
        formats=("compressed-tensors", "modelslim"),
    )

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from ascend_quant.schemes.arithmetic import quantize_weight

        return quantize_weight(w_NK)

    def activation(self, x_MK: torch.Tensor) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import dequantize, quantize_rows

        return dequantize(*quantize_rows(x_MK))

    def rounded(self, w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import dequantize, quantize_weight

        return dequantize(*quantize_weight(w_NK, absmax_N))

    def product(
        self, x_MK: torch.Tensor, codes_NK: torch.Tensor, scale_N: torch.Tensor, bias_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute the product, whose sum over K is exact: float64 holds it for K below 2**38."""
        from ascend_quant.schemes.arithmetic import quantize_rows, scaled_product

        return scaled_product(*quantize_rows(x_MK), codes_NK, scale_N.float(), bias_N)

    def tensors(self, format: str, name: str, rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        offset = {f"{name.removesuffix('weight')}weight_offset": ("F32", (rows, 1))} if format == "modelslim" else {}
        return super().tensors(format, name, rows, columns) | offset


register(Int8(Scheme("int8", "int8", "row", f"W8A8: symmetric per-output-channel weights, {PER_TOKEN}")))
