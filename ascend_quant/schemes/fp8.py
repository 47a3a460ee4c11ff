"""fp8 and fp8_tensor, W8A8 in float8_e4m3fn: scale = absmax / 448 per row or per tensor; activations per token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_quant.schemes.definition import PER_TOKEN, Definition, Scales, Stored
from ascend_quant.schemes.registry import register
from ascend_quant.schemes.scheme import FP8_MAX, Scheme

if TYPE_CHECKING:
    import torch

TOKENS = {"strategy": "token", "dynamic": True}


class Fp8(Definition):
    """float8_e4m3fn codes (..., N, K), float32 scales (..., N)."""

    codes_dtype, kind, largest = "float8_e4m3fn", "fp8", FP8_MAX
    stored = Stored("float-quantized", "float", "channel", TOKENS)

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from ascend_quant.schemes.arithmetic import quantize_fp8_rows

        return quantize_fp8_rows(w_NK)

    def activation(self, x_MK: torch.Tensor) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import dequantize, quantize_fp8_tokens

        return dequantize(*quantize_fp8_tokens(x_MK))

    def rounded(self, w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
        """Round w to fp8 and back, by rows or with `absmax_N`: a tensor's absmax is then that of each of its rows."""
        from ascend_quant.schemes.arithmetic import dequantize, quantize_fp8_rows

        return dequantize(*quantize_fp8_rows(w_NK, absmax_N))

    def product(
        self, x_MK: torch.Tensor, codes_NK: torch.Tensor, scale: torch.Tensor, bias_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import quantize_fp8_tokens, scaled_product

        return scaled_product(*quantize_fp8_tokens(x_MK), codes_NK, scale, bias_N)


class Fp8Tensor(Fp8):
    """float8_e4m3fn codes (..., N, K), one float32 scale (...) per matrix. A resident weight repeats it for each row,
    since serving kernels expect a vector, and a parameter may consist of several tensors."""

    kind = "fp8_tensor"
    stored = Stored(
        "float-quantized",
        "float",
        "tensor",
        TOKENS,
        formats=("compressed-tensors", "fp8"),
        no_experts=("compressed-tensors",),  # vLLM 0.28 supports such experts only with static activations
    )

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from ascend_quant.schemes.arithmetic import quantize_fp8_tensor

        return quantize_fp8_tensor(w_NK)

    def stored_scales(self, rows: int, columns: int) -> Scales:
        return Scales("float32", (1,))

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return rows, columns


register(Fp8(Scheme("fp8", "fp8", "row", f"W8A8 in float8_e4m3fn: per-output-channel weights, {PER_TOKEN}")))
register(
    Fp8Tensor(Scheme("fp8_tensor", "fp8", "tensor", f"W8A8 in float8_e4m3fn: one scale per weight tensor, {PER_TOKEN}"))
)
