"""The definition of a scheme: its reference arithmetic, its quantized data and scales, and its names in checkpoints.

A definition implements `quantize` and `dequantize`, and overrides the defaults below where it differs. Everything
without a faster kernel (on CPUs, in refits, in `convert` and `mismatch`) calls these; they are looked up once per
tensor.

Shape suffixes: M tokens, N output channels, K input channels, S scales of a row.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from ascend_quant.schemes.scheme import Scheme

if TYPE_CHECKING:
    import torch

FORMATS = ("compressed-tensors", "fp8", "modelslim")  # of checkpoints that `convert` writes
PER_TOKEN = "dynamic per-token activations"
SAFETENSORS = {  # safetensors' name of a dtype, by torch's
    "int8": "I8",
    "uint8": "U8",
    "float8_e4m3fn": "F8_E4M3",
    "bfloat16": "BF16",
    "float32": "F32",
}


class Scales(NamedTuple):
    """The scales of a weight: torch's name of their dtype, and their shape."""

    dtype: str
    shape: tuple[int, ...]


class Stored(NamedTuple):
    """The names of a scheme in checkpoints, in the terms of compressed-tensors.

    Attributes:
        format: format of the whole checkpoint, such as int-quantized.
        type: int or float.
        strategy: which weights share a scale: channel, tensor or group.
        activations: fields of input_activations besides the bits, the type and `symmetric`; None if activations are not
            quantized.
        scale_dtype: its name in config.json; None if the format implies it.
        formats: those of FORMATS that can store the scheme.
        no_experts: those of `formats` whose readers do not support experts.
    """

    format: str
    type: str
    strategy: str
    activations: Mapping[str, object] | None
    scale_dtype: str | None = None
    formats: tuple[str, ...] = ("compressed-tensors",)
    no_experts: tuple[str, ...] = ()


class Definition:
    """The definition of one scheme.

    Attributes:
        codes_dtype: torch's name for the dtype of the quantized weights; None if weights keep their dtype.
        bits: bits per code in memory and in files.
        kind: the kernels' name for this quantization (`kernels.writes.RowWrite.kind`); None if they call `quantize`
            instead, with a few whole rows at a time; then each row may have any number of scales (N, S).
        largest: the code of a tile's absmax if scale = absmax / largest, which lets `convert` work in place; None if
            only `quantize` can compute the scale.
        rounds: whether codes are integers.
        stored: its names in checkpoints; None if no format can store it.
    """

    codes_dtype: str | None = None
    bits = 8
    kind: str | None = None
    largest: int | None = None
    rounds = False
    stored: Stored | None = None

    def __init__(self, scheme: Scheme):
        self.scheme = scheme

    @property
    def by_definition(self) -> bool:
        """True if kernels have no quantization of their own for this scheme and call `quantize`."""
        return self.codes_dtype is not None and self.kind is None

    @property
    def code_in_files(self) -> str:
        """The safetensors dtype of codes that files store unchanged; raises ValueError if there are none."""
        if self.codes_dtype is None:
            raise ValueError(f"scheme {self.scheme.name} does not quantize weights")
        return SAFETENSORS[self.codes_dtype]

    def quantize(self, w_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return codes (..., N, K) and scales of a weight, which is rounded to BF16 first; see `oracle.quantize`."""
        raise NotImplementedError(f"scheme {self.scheme.name} does not define quantize")

    def dequantize(self, codes_NK: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the values of codes and scales from `quantize`, in float32 (..., N, K)."""
        from ascend_quant.schemes.arithmetic import dequantize

        return dequantize(codes_NK, scale)

    def finite(self, scale: torch.Tensor) -> torch.Tensor:
        """Return a bool for each scale: False if the weights that it was computed from contain NaN or Inf."""
        return scale.isfinite()

    def activation(self, x_MK: torch.Tensor) -> torch.Tensor:
        """Quantize and dequantize activations (M, K) as the scheme does; by default they are not changed."""
        return x_MK

    def served(self, codes_NK: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        """Return the values that GEMMs multiply by, in float32 (..., N, K)."""
        return self.dequantize(codes_NK, scale)

    def rounded(self, w_NK: torch.Tensor, absmax_N: torch.Tensor | None = None) -> torch.Tensor:
        """Return the weight's values in GEMMs, in float32 (N, K).

        Args:
            absmax_N: absmax of all weights that share a scale with each row, if these are more than the row; ignored if
                scales are not per row.
        """
        return self.served(*self.quantize(w_NK))

    def product(
        self, x_MK: torch.Tensor, codes_NK: torch.Tensor, scale: torch.Tensor, bias_N: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Compute x_MK @ w_NK.T + bias_N in float32 (M, N), with the sum over K in float64."""
        out_MN = (self.activation(x_MK).double() @ self.served(codes_NK, scale).double().T).float()
        return out_MN if bias_N is None else out_MN + bias_N.float()

    def takes(self, columns: int) -> bool:
        """Return whether the scheme supports rows of K = `columns` elements."""
        return not (self.scheme.group and columns % self.scheme.group)

    def scales(self, rows: int, columns: int) -> Scales:
        """Return the dtype and shape of the scales of a resident weight (N, K)."""
        return Scales("float32", (rows, 1))

    def stored_scales(self, rows: int, columns: int) -> Scales:
        """Return the dtype and shape of the scales of a weight in a checkpoint; by default as in the engine."""
        return self.scales(rows, columns)

    def tile(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the rows and columns of a weight (N, K) that share one scale."""
        return (1, self.scheme.group or columns)

    def tensors(self, format: str, name: str, rows: int, columns: int) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Return the tensors of a weight (N, K), `name` (ending in .weight), in a checkpoint: codes first, then scales,
        then constant tensors; each with its safetensors dtype and its shape."""
        dtype, shape = self.stored_scales(rows, columns)
        codes = {name: (self.code_in_files, (rows, columns))}
        return codes | {f"{name}_scale": (SAFETENSORS[dtype], shape)}
