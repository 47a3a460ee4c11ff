"""fp8_block, blockwise W8A8 in float8_e4m3fn as in DeepSeek's models: scale = absmax / 448 per 128x128 block of
weights, and per 128 activations of a token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ascend_quant.schemes.definition import SAFETENSORS, Definition, Scales, Stored
from ascend_quant.schemes.registry import register
from ascend_quant.schemes.scheme import BLOCK, FP8_MAX, Scheme

if TYPE_CHECKING:
    import torch


class Fp8Block(Definition):
    """float8_e4m3fn codes (..., N, K), float32 scales (..., ceil(N / 128), ceil(K / 128))."""

    codes_dtype, kind, largest = "float8_e4m3fn", "fp8_blocks", FP8_MAX
    stored = Stored("float-quantized", "float", "block", None, formats=("fp8",))

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        from ascend_quant.schemes.arithmetic import quantize_fp8_blocks

        return quantize_fp8_blocks(w_NK)

    def activation(self, x_MK: torch.Tensor) -> torch.Tensor:
        from ascend_quant.schemes.arithmetic import round_trip_fp8_groups

        return round_trip_fp8_groups(x_MK)

    def scales(self, rows: int, columns: int) -> Scales:
        return Scales("float32", (-(-rows // BLOCK), -(-columns // BLOCK)))

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        return BLOCK, BLOCK

    def tensors(self, format: str, name: str, rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        dtype, shape = self.scales(rows, columns)
        codes = {name: (self.code_in_files, (rows, columns))}
        return codes | {f"{name}_scale_inv": (SAFETENSORS[dtype], shape)}


register(
    Fp8Block(
        Scheme("fp8_block", "fp8", "block", "W8A8 in float8_e4m3fn: 128x128 weight blocks, 1x128 activation groups")
    )
)
