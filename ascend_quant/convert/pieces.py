"""The conversion of one tensor, or of some rows of it (an expert of a stack): copied, quantized or dequantized.

Each piece is written to the shard's file a few rows at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from ascend_quant import oracle
from ascend_quant.convert.formats import Spec, unchanging
from ascend_quant.convert.quantizer import Quantizer
from ascend_quant.convert.shard_file import ShardFile
from ascend_quant.profile.checkpoints import BadCheckpoint, Checkpoint
from ascend_quant.profile.scales import FLOATS

ELEMENTS = 1 << 20  # elements at a time


class Part(NamedTuple):
    """A tensor of IN, or those of its rows that belong to one expert.

    Attributes:
        first_row: first row in the tensor as a matrix (..., K); None for all rows.
    """

    source: str
    shape: tuple[int, ...]
    first_row: int | None = None

    def read(self, checkpoint: Checkpoint) -> torch.Tensor:
        """Return the tensor or its rows, memory-mapped."""
        tensor = checkpoint.tensor(self.source)
        if self.first_row is None:
            return tensor
        return tensor.flatten(0, -2)[self.first_row : self.first_row + self.shape[0]]


@dataclass(frozen=True)
class Copy:
    """A tensor that is copied, or rounded to BF16 if `dtype` says so."""

    part: Part
    name: str
    dtype: str

    @property
    def outputs(self) -> dict[str, Spec]:
        """Return the tensors of OUT."""
        return {self.name: Spec(self.dtype, self.part.shape)}

    def write(self, checkpoint: Checkpoint, quantizer: Quantizer | None, file: ShardFile) -> None:
        tensor = self.part.read(checkpoint)
        if tensor.numel() == 0:
            return
        rows = tensor.flatten(1) if tensor.dim() > 1 else tensor.reshape(-1, 1)
        step = max(1, ELEMENTS // rows.shape[1])
        for first in range(0, len(rows), step):
            part = rows[first : first + step]
            part = part.to(torch.bfloat16) if self.dtype == "BF16" else part
            if self.dtype in FLOATS and not part.abs().amax().isfinite():
                raise not_finite(self.name, tensor)
            file.write(self.name, first, part)


@dataclass(frozen=True)
class Quantize:
    """A weight that is quantized."""

    part: Part
    outputs: dict[str, Spec] = field(hash=False)

    def write(self, checkpoint: Checkpoint, quantizer: Quantizer | None, file: ShardFile) -> None:
        codes, scales, *others = self.outputs
        packs = self.outputs[codes].dtype == "I32"

        def sink(first: int, codes_RK: torch.Tensor) -> None:
            file.write(codes, first, oracle.pack_int4(codes_RK) if packs else codes_RK)

        w_NK = self.part.read(checkpoint)
        scale_IJ = quantizer.quantize(w_NK, sink)
        if not quantizer.definition.finite(scale_IJ).all():
            raise not_finite(self.part.source, w_NK)
        file.write(scales, 0, scale_IJ)
        for name in others:
            file.write(name, 0, unchanging(name, self.outputs[name], self.part.shape))


@dataclass(frozen=True)
class Dequantize:
    """A quantized weight that is dequantized to BF16.

    Attributes:
        read: returns its codes (N, K) and scales, see `Quantized.readers`.
    """

    part: Part
    name: str
    read: Callable[[], tuple[torch.Tensor, torch.Tensor]]

    @property
    def outputs(self) -> dict[str, Spec]:
        """Return the tensor of OUT."""
        return {self.name: Spec("BF16", self.part.shape)}

    def write(self, checkpoint: Checkpoint, quantizer: Quantizer | None, file: ShardFile) -> None:
        codes, scale = self.read()
        per = oracle.BLOCK if codes.dtype == torch.float8_e4m3fn and scale.dim() == 2 else 1
        step = max(1, ELEMENTS // max(1, self.part.shape[1]) // per) * per
        for first in range(0, len(codes), step):
            part = codes[first : first + step]
            codes_RK = oracle.unpack_int4(part) if part.dtype == torch.int32 else part
            scale_R = scale[first // per : -(-(first + step) // per)] if scale.dim() else scale
            values_RK = oracle.dequantize(codes_RK, scale_R)
            rounded_RK = values_RK.to(torch.bfloat16)
            if not rounded_RK.isfinite().all():
                raise not_finite(self.name, values_RK)
            file.write(self.name, first, rounded_RK)


Piece = Copy | Quantize | Dequantize


def not_finite(name: str, tensor: torch.Tensor) -> BadCheckpoint:
    """Return the error for elements that are NaN or infinite, or become so in BF16, with their number."""
    if bad := int((~torch.isfinite(tensor)).sum()):
        found = f"{bad} of {tensor.numel()} elements are NaN or infinite"
    else:
        beyond = int(tensor.to(torch.bfloat16).isinf().sum())
        found = (
            f"{beyond} of {tensor.numel()} elements are beyond BF16's range of {torch.finfo(torch.bfloat16).max:.3g}"
        )
    return BadCheckpoint(f"{name}: {found}; convert a checkpoint without such values")
