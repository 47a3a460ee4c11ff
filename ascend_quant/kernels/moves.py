"""Jobs for a refit's kernels, the same on every device: a batch of moves (rows to write), and the counts taken.

A `Move` says where the rows of one matrix go. Its source is given beside it, as any tensor whose memory holds the
matrix: a plan keeps the move and gives it next step's tensor.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch

from ascend_quant.oracle import PRIME
from ascend_quant.schemes import Scheme

# Every 64th row of a resident tensor is compared with its former codes: reading all would cost a third more.
SAMPLE = 64
SCALE_BYTES = 4  # of a float32


class Place(Protocol):
    """Rows of a resident tensor that does not keep them as rows of elements side by side.

    Attributes:
        tensor: what the engine computes with.
        shape: (N, K) of all rows.
    """

    tensor: torch.Tensor
    shape: torch.Size

    def __getitem__(self, rows: slice) -> torch.Tensor:
        """Return a copy of some rows."""

    def write(self, first: int, codes_NK: torch.Tensor) -> None:
        """Put rows from number `first` on in their places."""

    def sampled(self) -> torch.Tensor | None:
        """A view of the memory that holds every SAMPLE-th row, and perhaps others; None where there is no such."""


class RefreshedPlace(Place, Protocol):
    """A place that keeps what kernels read in another order than the refit writes it."""

    def refresh(self) -> None:
        """Bring that up to date, once a refit."""


@dataclass(eq=False)
class Move:
    """A move of rows of one source matrix into rows of one resident tensor.

    Attributes:
        target_NK: the resident rows, last stride 1: int8 or float8_e4m3fn codes, or the source's values.
        scale: written with the codes: float32, (N) one a row or (N/128, K/128) one a block, BF16 (N, K/group) one a
            group, or what `scheme` says; None where the target holds plain values.
        first_row: index of the first row in the whole resident tensor.
        weight: factor of the tensor in the digest of all residents, below 2**61.
        offset, row_stride, column_stride: of the matrix within the source tensor, in elements.
        whole: (offset, L) of the complete rows of L elements that the matrix is a slice of, whose largest magnitude
            sets the scale; None if the matrix holds them itself.
        exact: whether a float32 source is quantized as it is (`oracle.quantize_rows`), not rounded to BF16 first;
            always so with given scales.
        coded: whether the source holds codes already, and behind each of its whole rows the row's scale: the four
            bytes of a float32, which need not be aligned (see `refit.coded`).
        given_N: float32 scales to quantize with (`oracle.quantize_given`), which become the resident ones; None for
            the rows' own.
        place: where the rows are put by their numbers, if `target_NK` is but a stand-in of their shape.
        among: (rows before the matrix, all rows) of the tensor that it is a part of, where a tensor has one scale,
            which every row gets; None where scales are shared otherwise.
        group: elements of a row that share an int4 scale; 0 otherwise.
        scheme: whose `quantize` makes codes and scales (N, S) of whole rows; None where kernels have a word for it.
        first_block: index of the first row of block scales in all of them; None where blocks are counted as rows are.
        block: the first resident row of the block that these rows are kept for, if other tensors have a part in it.
    """

    target_NK: torch.Tensor
    scale: torch.Tensor | None = None
    first_row: int = 0
    weight: int = 1
    offset: int = 0
    row_stride: int = 0
    column_stride: int = 1
    whole: tuple[int, int] | None = None
    exact: bool = False
    coded: bool = False
    given_N: torch.Tensor | None = None
    place: "Place | None" = None
    among: tuple[int, int] | None = None
    group: int = 0
    scheme: Scheme | None = None
    first_block: int | None = None
    block: int | None = None

    @classmethod
    def of(cls, source_NK: torch.Tensor, target_NK: torch.Tensor, scale: torch.Tensor | None = None, **more) -> "Move":
        """A move whose source tensor is the matrix itself."""
        return cls(target_NK, scale, row_stride=source_NK.stride(0), column_stride=source_NK.stride(1), **more)

    def __post_init__(self) -> None:
        self.rows = self.target_NK.shape[0]
        self.exact = self.exact or self.given_N is not None
        if self.exact and (self.scheme is not None or self.target_NK.dtype != torch.int8):
            raise ValueError(f"exact values or given scales for {self.target_NK.dtype}: only int8 codes have them")

    @property
    def kind(self) -> str:
        """The conversion of the rows, in the kernels' words, such as "int8", "fp8_blocks" or "copy"."""
        if self.scale is None:
            return "copy"
        if self.coded:
            return "codes" if self.target_NK.dtype == torch.int8 else "fp8_codes"
        if self.scheme is not None:
            return self.scheme.name
        if self.group:
            return "int4"
        if self.target_NK.dtype == torch.int8:
            return "int8_given" if self.given_N is not None else "int8_exact" if self.exact else "int8"
        if self.scale.dim() == 2:
            return "fp8_blocks"
        return "fp8" if self.among is None else "fp8_tensor"

    def followed_by(self, other: "Move") -> bool:
        """Return whether another move of the same tensor goes on where this one ends, here and there."""
        behind = self.rows * self.row_stride
        whole = self.whole and (self.whole[0] + behind, self.whole[1])
        strides, others = (self.row_stride, self.column_stride), (other.row_stride, other.column_stride)
        mine = (self.first_row + self.rows, self.offset + behind, strides, whole, self.target_NK.shape[1])
        theirs = (other.first_row, other.offset, others, other.whole, other.target_NK.shape[1])
        dense = all(move.rows == 1 or move.target_NK.stride(0) == mine[-1] for move in (self, other))
        joins = ("copy", "int8", "int8_exact", "fp8", "codes", "fp8_codes")  # each row is on its own
        alike = self.kind == other.kind and self.block is other.block is None
        return mine == theirs and dense and alike and self.kind in joins

    def joined(self, other: "Move") -> "Move":
        """Join this move and the one that follows it; a resident's rows, and their scales, lie side by side."""
        rows, length = self.rows + other.rows, self.target_NK.shape[1]
        target_NK = self.target_NK.as_strided((rows, length), (length, 1))
        scale = None if self.scale is None else self.scale.as_strided((rows,), (1,))
        return replace(self, target_NK=target_NK, scale=scale)

    def values(self, part: torch.Tensor) -> torch.Tensor:
        """Return the values of a part of the source that are quantized: BF16, or float32 if it is taken as it is."""
        return part.float() if self.exact else part.to(torch.bfloat16)

    def matrix(self, source: torch.Tensor) -> torch.Tensor:
        """(N, K): the matrix within `source`."""
        return self._view(source, self.offset, self.target_NK.shape[1])

    def whole_rows(self, source: torch.Tensor) -> torch.Tensor | None:
        """(N, L): the complete rows within `source`."""
        return None if self.whole is None else self._view(source, *self.whole)

    @property
    def sent_scale(self) -> tuple[int, int]:
        """The bytes of a coded source's scales: (offset, length) of each row's, in elements."""
        offset, length = self.whole
        return offset + length, SCALE_BYTES

    def rows_with_scale(self, source: torch.Tensor) -> torch.Tensor:
        """(N, L + 4): the complete rows of a coded source, and their scales."""
        return self._view(source, self.whole[0], self.whole[1] + SCALE_BYTES)

    def sent_scale_N(self, source: torch.Tensor) -> torch.Tensor:
        """float32 (N): the scales behind the rows of a coded source."""
        return scales_in(self._view(source, *self.sent_scale))

    def whole_tensor(self, source: torch.Tensor) -> torch.Tensor:
        """(all rows, L): the tensor that the matrix is a part of."""
        offset, length = self.whole or (self.offset, self.target_NK.shape[1])
        before, rows = self.among
        return self._view(source, offset - before * self.row_stride, length, rows)

    def _view(self, source: torch.Tensor, offset: int, columns: int, rows: int | None = None) -> torch.Tensor:
        shape = (self.rows if rows is None else rows, columns)
        return source.as_strided(shape, (self.row_stride, self.column_stride), source.storage_offset() + offset)


def scales_in(bytes_NB: torch.Tensor) -> torch.Tensor:
    """float32 (N) that the (N, 4) elements of one byte are; a copy, since they may lie anywhere."""
    return bytes_NB.clone(memory_format=torch.contiguous_format).view(torch.float32).view(-1)


@dataclass(eq=False)
class Moves:
    """Moves of tensors that come together.

    Attributes:
        moves: in any order.
        takes: for each move, which of the tensors it takes.
        notes: the kernel module's own; they hold while the tensors keep their shapes, dtypes and devices.
    """

    moves: Sequence[Move]
    takes: Sequence[int]
    notes: object = field(default=None, repr=False)


class Job(NamedTuple):
    """Moves, the tensors that they take this time, and for each tensor its address and its counter of bad elements."""

    moves: Moves
    tensors: Sequence[torch.Tensor]
    addresses: Sequence[int]
    slots: np.ndarray

    @classmethod
    def of(cls, move: Move, source: torch.Tensor, slot: int = 0) -> "Job":
        """Make a job of a single move."""
        return cls.of_each([move], [source], [slot])

    @classmethod
    def of_each(cls, moves: Sequence[Move], sources: Sequence[torch.Tensor], slots: Sequence[int]) -> "Job":
        """Make a job of moves with a source each."""
        addresses = [source.data_ptr() for source in sources]
        return cls(Moves(moves, range(len(moves))), sources, addresses, np.array(slots))

    def each(self) -> Iterator[tuple[Move, torch.Tensor, int]]:
        """The moves one by one, with their source and its slot."""
        for move, take in zip(self.moves.moves, self.moves.takes, strict=True):
            yield move, self.tensors[take], int(self.slots[take])


class Counters:
    """The counts that kernels take during one refit, kept on the device and read once.

    Attributes:
        totals: int64 (SPREAD, TOTALS) changed codes, sums of the digest's low 32 bits and of its higher ones, and the
            codes lost to clamping with given scales; spread so that programs do not queue up.
        bad: blocks of int64 (BLOCK), non-finite elements of each source tensor.
        clamped: the total of codes lost to clamping that `read` found last.
    """

    SPREAD, TOTALS, BLOCK = 64, 4, 4096
    NONFINITE = "elements"  # what `read` counts of a tensor

    def __init__(self, device: torch.device, sparing: bool = False):  # the work space is small at all times
        self.totals = torch.zeros(self.SPREAD, self.TOTALS, dtype=torch.int64, device=device)
        self.bad: list[torch.Tensor] = []
        self.slots = self.clamped = 0

    def new_slots(self, count: int = 1) -> int:
        """The number of the next source tensor, the first of `count` in a row."""
        self.slots += count
        while self.slots > len(self.bad) * self.BLOCK:
            self.bad.append(torch.zeros(self.BLOCK, dtype=torch.int64, device=self.totals.device))
        return self.slots - count

    def bad_of(self, slot: int) -> torch.Tensor:
        """The counter of one source tensor, a view of one element."""
        return self.bad[slot // self.BLOCK][slot % self.BLOCK]

    def read(self) -> tuple[int, int, dict[int, int]]:
        """Changed codes, the digest, and the non-finite elements by slot; waits for the device once if all is well."""
        sums = torch.cat([self.totals.sum(0), *(block.sum().view(1) for block in self.bad)]).tolist()
        changed, low, high, self.clamped, *bad = sums
        found = {}
        for i, block in enumerate(self.bad):
            if bad[i]:
                found |= {i * self.BLOCK + j: n for j, n in enumerate(block.tolist()) if n}
        return changed, (low + (high << 32)) % PRIME, found


def sampled(first_row: int, rows: int) -> slice:
    """Return which of `rows` rows, from row `first_row` of the tensor on, are compared with their former codes."""
    return slice(-first_row % SAMPLE, rows, SAMPLE)
