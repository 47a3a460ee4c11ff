"""The writes that a refit passes to its kernels, the same on every device: rows to write, and their source tensors.

A `RowWrite` says where the rows of one matrix go, its class what becomes of them on the way:

CopyWrite           they are cast to the resident's dtype
Int8Write           int8 codes, a scale a row
Fp8Write            fp8 codes, a scale a row, a tensor or a block
Int4Write           int4 codes, a scale a group of a row
PrequantizedWrite   quantized rows from a trainer, each with its scale
SchemeWrite         codes and scales of a scheme that kernels have no word for

Its source is given beside it (`Job`), as any tensor whose memory holds the matrix: a plan keeps the write and gives it
next step's tensor.
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
JOINED = ("copy", "int8", "int8_float32", "fp8", "int8_prequantized", "fp8_prequantized")  # each row is on its own


@dataclass(eq=False, kw_only=True)
class RowWrite:
    """A write of one source matrix's rows into rows of one resident tensor. All but copies have a `scale` too.

    Attributes:
        target: (N, K) the resident rows, last stride 1.
        layout: what puts the rows where they belong by their numbers, if `target` is but a stand-in of their shape.
        first_row: index of the first row in the whole resident tensor.
        weight: factor of the tensor in the digest of all residents, below 2**61.
        offset, row_stride, column_stride: of the matrix within the source tensor, in elements.
        whole: (offset, L) of the complete rows of L elements that the matrix is a slice of, whose largest magnitude
            sets the scale; None if the matrix holds them itself.
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
        """A write whose source tensor is the matrix itself."""
        return cls(target=target, row_stride=source_NK.stride(0), column_stride=source_NK.stride(1), **more)

    @property
    def kind(self) -> str:
        """The kind of conversion, by which kernels are selected, such as "int8", "fp8_blocks" or "copy"."""
        raise NotImplementedError(f"{type(self).__name__} is abstract: instantiate one of its subclasses")

    @cached_property
    def rows(self) -> int:
        return self.target.shape[0]

    def followed_by(self, other: "RowWrite") -> bool:
        """Return whether another write of the same tensor goes on where this one ends, here and there."""
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
        """Join this write and the one that follows it; a resident's rows, and their scales, lie side by side."""
        rows, length = self.rows + other.rows, self.target.shape[1]
        longer = {"target": self.target.as_strided((rows, length), (length, 1))}
        if self.scale is not None:
            longer["scale"] = self.scale.as_strided((rows,), (1,))
        return replace(self, **longer)

    def values(self, part: torch.Tensor) -> torch.Tensor:
        """Return the values of a part of the source that are quantized."""
        return part.to(torch.bfloat16)

    def matrix(self, source: torch.Tensor) -> torch.Tensor:
        """(N, K): the matrix within `source`."""
        return self._view(source, self.offset, self.target.shape[1])

    def whole_rows(self, source: torch.Tensor) -> torch.Tensor | None:
        """(N, L): the complete rows within `source`."""
        return None if self.whole is None else self._view(source, *self.whole)

    def _view(self, source: torch.Tensor, offset: int, columns: int, rows: int | None = None) -> torch.Tensor:
        shape = (self.rows if rows is None else rows, columns)
        return source.as_strided(shape, (self.row_stride, self.column_stride), source.storage_offset() + offset)


@dataclass(eq=False, kw_only=True)
class CopyWrite(RowWrite):
    """Values, cast to the target's dtype.

    Attributes:
        edge_block: the first resident row of the block that these rows are kept for until other tensors have brought
            theirs; None for rows that are resident as they are.
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
        static_scale: float32 (N), to quantize with (`oracle.quantize_given`), which become the resident ones; None for
            the rows' own.
        skip_bf16_cast: whether a float32 source is quantized as it is (`oracle.quantize_rows`), not rounded to BF16
            first; always so with static scales.

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
    """Codes of float8_e4m3fn; what shares a scale shows in the shape of the scales and in `tensor_rows`.

    Attributes:
        scale: float32, (N) one a row, or (N/128, K/128) one a block.
        tensor_rows: (rows before the matrix, all rows) of the tensor that it is a part of, where a tensor has one
            scale, which every row gets; None where scales are shared otherwise.
        first_block: index of the first row of block scales in all of them; None where blocks are counted as rows are.
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
        """(all rows, L): the tensor that the matrix is a part of."""
        offset, length = self.whole or (self.offset, self.target.shape[1])
        before, rows = self.tensor_rows
        return self._view(source, offset - before * self.row_stride, length, rows)


@dataclass(eq=False, kw_only=True)
class Int4Write(RowWrite):
    """Quantization to int4, in the layout's order.

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

    Behind each of the source's whole rows is the row's scale: the four bytes of a float32, which need not be aligned
    (see `transfer.prequantized`).

    Attributes:
        scale: float32 (N), where these are written.
    """

    scale: torch.Tensor

    @property
    def kind(self) -> str:
        return "int8_prequantized" if self.target.dtype == torch.int8 else "fp8_prequantized"

    @property
    def sent_scale(self) -> tuple[int, int]:
        """The bytes of the sent scales: (offset, length) of each row's, in elements."""
        offset, length = self.whole
        return offset + length, SCALE_BYTES

    def rows_with_scale(self, source: torch.Tensor) -> torch.Tensor:
        """(N, L + 4): the complete rows, and their scales."""
        return self._view(source, self.whole[0], self.whole[1] + SCALE_BYTES)

    def sent_scale_N(self, source: torch.Tensor) -> torch.Tensor:
        """float32 (N): the scales behind the rows."""
        return scales_in(self._view(source, *self.sent_scale))


@dataclass(eq=False, kw_only=True)
class SchemeWrite(RowWrite):
    """Quantization of complete rows by the scheme's own `quantize`.

    Attributes:
        scale: (N, S), of the dtype that the scheme's definition says.
    """

    scale: torch.Tensor
    scheme: Scheme

    @property
    def kind(self) -> str:
        return self.scheme.name


def scales_in(bytes_NB: torch.Tensor) -> torch.Tensor:
    """float32 (N) that the (N, 4) elements of one byte are; a copy, since they may lie anywhere."""
    return bytes_NB.clone(memory_format=torch.contiguous_format).view(torch.float32).view(-1)


@dataclass(eq=False)
class WriteBatch:
    """Writes of the tensors of one call.

    Attributes:
        writes: in any order.
        source_index: for each write, which of the tensors it reads.
        kernel_cache: the kernel module's own; it holds while the tensors keep their shapes, dtypes and devices.
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
        """Make a job of a single write."""
        return cls.of_each([write], [source], [slot])

    @classmethod
    def of_each(cls, writes: Sequence[RowWrite], sources: Sequence[torch.Tensor], slots: Sequence[int]) -> "Job":
        """Make a job of writes with a source each."""
        addresses = [source.data_ptr() for source in sources]
        return cls(WriteBatch(writes, range(len(writes))), sources, addresses, np.array(slots))

    def each(self) -> Iterator[tuple[RowWrite, torch.Tensor, int]]:
        """The writes one by one, with their source and its slot."""
        for write, index in zip(self.batch.writes, self.batch.source_index, strict=True):
            yield write, self.tensors[index], int(self.slots[index])
