"""fp8 and fp8_tensor, W8A8 in float8_e4m3fn: scale = absmax / 448 of a row, or of the whole tensor; tokens by rows."""

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
        """Round w to fp8 and back, by rows or by `absmax_N`: a tensor's amax is then that of each of its rows."""
        from ascend_quant.schemes.arithmetic import dequantize, quantize_fp8_rows

        return dequantize(*quantize_fp8_rows(w_NK, absmax_N))

    def product(
        self, x_MK: torch.Tensor, codes_NK: torch.Tensor, scale: torch.Tensor, bias_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import quantize_fp8_tokens, scaled_product

        return scaled_product(*quantize_fp8_tokens(x_MK), codes_NK, scale, bias_N)


class Fp8Tensor(Fp8):
    """float8_e4m3fn codes (..., N, K), one float32 scale (...) a matrix; a resident weight has it for each row, since
    serving kernels take a vector, and a parameter may consist of several tensors."""

    kind = "fp8_tensor"
    stored = Stored(
        "float-quantized",
        "float",
        "tensor",
        TOKENS,
        formats=("compressed-tensors", "fp8"),
        no_experts=("compressed-tensors",),  # vLLM 0.28 takes these experts with static activations alone
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
