"""The writes that a refit passes to its kernels, on every device: rows to write, and their source tensors.

A `RowWrite` describes where the rows of one matrix are written; its class determines the conversion:

CopyWrite           cast to the resident's dtype
Int8Write           int8 codes, with a scale per row
Fp8Write            fp8 codes, with a scale per row, tensor or block
Int4Write           int4 codes, with a scale per group of a row
PrequantizedWrite   quantized rows from a trainer, each with its scale
SchemeWrite         codes and scales of a scheme without kernels

The source is passed separately (`Job`), as a tensor whose memory contains the matrix: a plan keeps the write, and uses
it with the next step's tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, NamedTuple

import numpy as np
import torch

from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.schemes import Scheme

SCALE_BYTES = 4  # of a float32
JOINED = ("copy", "int8", "int8_float32", "fp8", "int8_prequantized", "fp8_prequantized")  # by row


@dataclass(eq=False, kw_only=True)
class RowWrite:
    """A write of one source matrix's rows into rows of one resident tensor. All classes but CopyWrite have a `scale`.

    Attributes:
        target: (N, K), the resident rows, with last stride 1.
        layout: writes the rows by index, if `target` is only a placeholder of their shape.
        first_row: index of the first row in the whole resident tensor.
        weight: factor of the tensor in the digest of all residents, below 2**61.
        offset, row_stride, column_stride: position and strides of the matrix in the source tensor, in elements.
        whole: (offset, L) of the complete rows of L elements, of which the matrix is a slice and whose absmax
            determines the scale; None if the matrix contains them.
    """

    target: torch.Tensor
    layout: WeightLayout | None = None
    first_row: int = 0
    weight: int = 1
    offset: int = 0
    row_stride: int = 0
    column_stride: int = 1
    whole: tuple[int, int] | None = None

    @classmethod
    def of(cls, source_NK: torch.Tensor, target: torch.Tensor, **more) -> "RowWrite":
        """Return a write whose source tensor is the matrix itself."""
        return cls(target=target, row_stride=source_NK.stride(0), column_stride=source_NK.stride(1), **more)

    @property
    def kind(self) -> str:
        """The kind of conversion, which selects the kernel, such as "int8", "fp8_blocks" or "copy"."""
        raise NotImplementedError(f"{type(self).__name__} is abstract: instantiate one of its subclasses")

    @cached_property
    def rows(self) -> int:
        return self.target.shape[0]

    def followed_by(self, other: "RowWrite") -> bool:
        """Return whether another write of the same tensor continues where this one ends, in source and target."""
        behind = self.rows * self.row_stride
        whole = self.whole and (self.whole[0] + behind, self.whole[1])
        strides, others = (self.row_stride, self.column_stride), (other.row_stride, other.column_stride)
        mine = (self.first_row + self.rows, self.offset + behind, strides, whole, self.target.shape[1])
        theirs = (other.first_row, other.offset, others, other.whole, other.target.shape[1])
        dense = all(one.rows == 1 or one.target.stride(0) == mine[-1] for one in (self, other))
        return mine == theirs and dense and self.kind == other.kind and self.joins and other.joins

    @property
    def joins(self) -> bool:
        """True if rows are quantized separately, so that two writes can be merged."""
        return self.kind in JOINED

    def joined(self, other: "RowWrite") -> "RowWrite":
        """Merge this write with the one that follows it; their resident rows and scales are contiguous."""
        rows, length = self.rows + other.rows, self.target.shape[1]
        longer = {"target": self.target.as_strided((rows, length), (length, 1))}
        if self.scale is not None:
            longer["scale"] = self.scale.as_strided((rows,), (1,))
        return replace(self, **longer)

    def values(self, part: torch.Tensor) -> torch.Tensor:
        """Return the values of a part of the source that are quantized."""
        return part.to(torch.bfloat16)

    def matrix(self, source: torch.Tensor) -> torch.Tensor:
        """Return the matrix (N, K) in `source`."""
        return self._view(source, self.offset, self.target.shape[1])

    def whole_rows(self, source: torch.Tensor) -> torch.Tensor | None:
        """Return the complete rows (N, L) in `source`."""
        return None if self.whole is None else self._view(source, *self.whole)

    def _view(self, source: torch.Tensor, offset: int, columns: int, rows: int | None = None) -> torch.Tensor:
        shape = (self.rows if rows is None else rows, columns)
        return source.as_strided(shape, (self.row_stride, self.column_stride), source.storage_offset() + offset)


@dataclass(eq=False, kw_only=True)
class CopyWrite(RowWrite):
    """A copy that casts to the target's dtype.

    Attributes:
        edge_block: first resident row of the block for which these rows are buffered until the rest of the block
            arrives; None for rows that are not quantized.
    """

    edge_block: int | None = None
    kind: ClassVar[str] = "copy"
    scale: ClassVar[None] = None

    @property
    def joins(self) -> bool:
        return self.edge_block is None


@dataclass(eq=False, kw_only=True)
class Int8Write(RowWrite):
    """Quantization to int8 with one scale per row.

    Attributes:
        scale: float32 (N), written with the codes.
        static_scale: float32 (N), fixed scales to quantize with (`oracle.quantize_given`), which become the resident
            ones; None to compute scales from the rows.
        skip_bf16_cast: whether a float32 source is quantized without rounding it to BF16 first
            (`oracle.quantize_rows`); always true with static scales.

    Raises:
        ValueError: the target does not hold int8.
    """

    scale: torch.Tensor
    static_scale: torch.Tensor | None = None
    skip_bf16_cast: bool = False

    def __post_init__(self) -> None:
        if self.target.dtype != torch.int8:
            raise ValueError(f"an Int8Write into {self.target.dtype}: use an int8 target, or another class of write")

    @property
    def kind(self) -> str:
        if self.static_scale is not None:
            return "int8_static"
        return "int8_float32" if self.skip_bf16_cast else "int8"

    def values(self, part: torch.Tensor) -> torch.Tensor:
        return super().values(part) if self.kind == "int8" else part.float()


@dataclass(eq=False, kw_only=True)
class Fp8Write(RowWrite):
    """Quantization to float8_e4m3fn; the shape of the scales and `tensor_rows` determine which elements share a scale.

    Attributes:
        scale: float32, (N) per row, or (N/128, K/128) per block.
        tensor_rows: (rows before the matrix, all rows) of the tensor that contains the matrix, for per-tensor scales,
            which are repeated for every row; None for other scales.
        first_block: index of the first row of block scales; None to derive it from `first_row`.
    """

    scale: torch.Tensor
    tensor_rows: tuple[int, int] | None = None
    first_block: int | None = None

    @property
    def kind(self) -> str:
        if self.scale.dim() == 2:
            return "fp8_blocks"
        return "fp8" if self.tensor_rows is None else "fp8_tensor"

    def whole_tensor(self, source: torch.Tensor) -> torch.Tensor:
        """Return (all rows, L): the tensor that contains the matrix."""
        offset, length = self.whole or (self.offset, self.target.shape[1])
        before, rows = self.tensor_rows
        return self._view(source, offset - before * self.row_stride, length, rows)


@dataclass(eq=False, kw_only=True)
class Int4Write(RowWrite):
    """Quantization to int4, in the order of the layout.

    Attributes:
        scale: BF16 (N, K/group).
        group: elements of a row that share a scale.
    """

    scale: torch.Tensor
    group: int
    kind: ClassVar[str] = "int4"


@dataclass(eq=False, kw_only=True)
class PrequantizedWrite(RowWrite):
    """Pre-quantized values in the target's dtype.

    Each whole row of the source is followed by its scale: the four bytes of a float32, possibly unaligned (see
    `transfer.prequantized`).

    Attributes:
        scale: float32 (N), the resident scales.
    """

    scale: torch.Tensor

    @property
    def kind(self) -> str:
        return "int8_prequantized" if self.target.dtype == torch.int8 else "fp8_prequantized"

    @property
    def sent_scale(self) -> tuple[int, int]:
        """Return the (offset, length) of each row's sent scale, in elements."""
        offset, length = self.whole
        return offset + length, SCALE_BYTES

    def rows_with_scale(self, source: torch.Tensor) -> torch.Tensor:
        """Return the complete rows (N, L + 4) with their scales."""
        return self._view(source, self.whole[0], self.whole[1] + SCALE_BYTES)

    def sent_scale_N(self, source: torch.Tensor) -> torch.Tensor:
        """Return the sent scales, float32 (N)."""
        return scales_in(self._view(source, *self.sent_scale))


@dataclass(eq=False, kw_only=True)
class SchemeWrite(RowWrite):
    """Quantization of complete rows by the scheme's own `quantize` method.

    Attributes:
        scale: (N, S), in the dtype that the scheme defines.
    """

    scale: torch.Tensor
    scheme: Scheme

    @property
    def kind(self) -> str:
        return self.scheme.name


def scales_in(bytes_NB: torch.Tensor) -> torch.Tensor:
    """Return float32 (N) from (N, 4) one-byte elements, as a copy, since they may be unaligned."""
    return bytes_NB.clone(memory_format=torch.contiguous_format).view(torch.float32).view(-1)


@dataclass(eq=False)
class WriteBatch:
    """Writes of the tensors of one call.

    Attributes:
        writes: in any order.
        source_index: for each write, the index of the tensor that it reads.
        kernel_cache: private to the kernel module; valid while the tensors keep their shapes, dtypes and devices.
    """

    writes: Sequence[RowWrite]
    source_index: Sequence[int]
    kernel_cache: object = field(default=None, repr=False)


class Job(NamedTuple):
    """Writes with this refit's source tensors, and each tensor's address and slot of its NaN and Inf counter."""

    batch: WriteBatch
    tensors: Sequence[torch.Tensor]
    addresses: Sequence[int]
    slots: np.ndarray

    @classmethod
    def of(cls, write: RowWrite, source: torch.Tensor, slot: int = 0) -> "Job":
        """Return a job with a single write."""
        return cls.of_each([write], [source], [slot])

    @classmethod
    def of_each(cls, writes: Sequence[RowWrite], sources: Sequence[torch.Tensor], slots: Sequence[int]) -> "Job":
        """Return a job of writes with one source each."""
        addresses = [source.data_ptr() for source in sources]
        return cls(WriteBatch(writes, range(len(writes))), sources, addresses, np.array(slots))

    def each(self) -> Iterator[tuple[RowWrite, torch.Tensor, int]]:
        """Yield the writes one by one, with their source and its slot."""
        for write, index in zip(self.batch.writes, self.batch.source_index, strict=True):
            yield write, self.tensors[index], int(self.slots[index])
