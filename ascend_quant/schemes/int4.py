"""int4_g128 and int4_g32, W4A16: scale = BF16(absmax / 7) per group of adjacent elements of a row, code =
round_half_even(value / scale), clamped to [-7, 7]; activations are not quantized.

The scale is BF16 because serving kernels multiply in BF16: their weight is BF16(code * scale), which training can
reproduce exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_quant.schemes.definition import Definition, Scales, Stored
from ascend_quant.schemes.registry import register
from ascend_quant.schemes.scheme import INT4_MAX, NIBBLES, Scheme

if TYPE_CHECKING:
    import torch


class Int4(Definition):
    """int4 codes (..., N, K), as int8, and BF16 scales (..., N, K / group)."""

    codes_dtype, bits, kind, largest, rounds = "int8", 4, "int4", INT4_MAX, True
    stored = Stored("pack-quantized", "int", "group", None)

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantize a weight; raise ValueError if K is not a multiple of the group."""
        from ascend_quant.schemes.arithmetic import quantize_groups

        return quantize_groups(w_NK, self.scheme.group)

    def served(self, codes_NK: torch.Tensor, scale_NG: torch.Tensor) -> torch.Tensor:
        return self.dequantize(codes_NK, scale_NG).bfloat16().float()

    def scales(self, rows: int, columns: int) -> Scales:
        return Scales("bfloat16", (rows, columns // self.scheme.group))

    def tensors(self, format: str, name: str, rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        return {
            f"{name}_packed": ("I32", (rows, columns // NIBBLES)),
            f"{name}_scale": ("BF16", self.scales(rows, columns).shape),
            f"{name}_shape": ("I64", (2,)),
        }


register(Int4(Scheme("int4_g128", "int4", "group", "W4A16: symmetric weights in groups of 128", 128)))
register(Int4(Scheme("int4_g32", "int4", "group", "W4A16: symmetric weights in groups of 32", 32)))
