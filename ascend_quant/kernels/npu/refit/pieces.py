"""Batching of a flush's rows into chunks for an NPU, with their sources and destinations, computed on the host.

A launch, or a view, takes the host longer than a megabyte takes the device. So rows of equal length are processed in
chunks of concatenated tensors. Sources that are contiguous in memory become one view, and contiguous destinations one
write.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from ascend_quant.kernels.counters import SAMPLE, sampled
from ascend_quant.kernels.writes import Job, RowWrite

ALONE = 1 << 25  # elements from which a piece gets its own launches, since copying it next to others would cost more


class Piece(NamedTuple):
    """A range of rows of a write, with their source."""

    write: RowWrite
    source: torch.Tensor
    slot: int
    rows: slice

    @property
    def count(self) -> int:
        return self.rows.stop - self.rows.start

    @property
    def first_row(self) -> int:
        """The index of the first row in the whole resident tensor."""
        return self.write.first_row + self.rows.start

    def goes_on(self, other: "Piece") -> bool:
        """Return whether another piece's rows and scales are contiguous with these in the same resident tensor."""
        mine, its = self.write, other.write
        if (mine.weight, self.first_row + self.count) != (its.weight, other.first_row) or mine.layout is not its.layout:
            return False
        scales = mine.scale is None or self._lies_before(other, mine.scale, its.scale)
        return scales and (mine.layout is not None or self._lies_before(other, mine.target, its.target))

    def _lies_before(self, other: "Piece", mine: torch.Tensor, its: torch.Tensor) -> bool:
        """Return whether two dense tensors are contiguous: the second begins where the first ends."""
        length = mine.shape[1] if mine.dim() > 1 else 1
        dense = all(len(rows) == 1 or rows.stride(0) == length for rows in (mine, its))
        end = mine.storage_offset() + (self.rows.stop - 1) * mine.stride(0) + length
        begin = its.storage_offset() + other.rows.start * its.stride(0)
        return dense and end == begin and _same_storage(mine, its)


class Run(NamedTuple):
    """Rows that are contiguous in a chunk and in one resident tensor.

    Attributes:
        first: the first piece.
        start, count: their range in the chunk.
    """

    first: Piece
    start: int
    count: int

    def of(self, chunk: torch.Tensor) -> torch.Tensor:
        """Return these rows of a tensor that was computed from the chunk."""
        return chunk if len(chunk) == self.count else chunk[self.start : self.start + self.count]

    def resident(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return these rows of the target, or scale, of the first write and of those that follow it."""
        rows = self.first.rows
        if rows.start == 0 and len(tensor) == self.count:
            return tensor
        if rows.start + self.count <= len(tensor):
            return tensor[rows.start : rows.start + self.count]
        length = tensor.shape[1:]
        strides = (length[0], 1) if length else (1,)
        offset = tensor.storage_offset() + rows.start * tensor.stride(0)
        return tensor.as_strided((self.count, *length), strides, offset)

    def sample(self, codes_NK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the sampled rows of the resident tensor and of the chunk; None if no row is sampled."""
        first, write = self.first.first_row, self.first.write
        here = sampled(first, self.count)
        if here.start >= self.count:
            return None
        new = codes_NK[self.start + here.start : self.start + self.count : SAMPLE]
        if write.layout is None:
            return self.resident(write.target)[here], new
        return write.layout[first + here.start : first + self.count : SAMPLE], new

    def write(self, values_NK: torch.Tensor, scale_N: torch.Tensor | None) -> None:
        """Write the chunk's values and scales to the resident tensors."""
        write = self.first.write
        if write.layout is None:
            self.resident(write.target).copy_(self.of(values_NK))
        else:
            write.layout.write(self.first.first_row, self.of(values_NK))
        if scale_N is not None:
            self.resident(write.scale).copy_(self.of(scale_N))


def runs_of(pieces: Sequence[Piece]) -> list[Run]:
    """Return the rows of a chunk, grouped by destination."""
    runs, start, last = [], 0, None
    for piece in pieces:
        if last is not None and last.goes_on(piece):
            runs[-1] = runs[-1]._replace(count=runs[-1].count + piece.count)
        else:
            runs.append(Run(piece, start, piece.count))
        start, last = start + piece.count, piece
    return runs


def chunks_of(
    jobs: Sequence[Job], key_of: Callable[[RowWrite, torch.Tensor], tuple], most: Callable[[RowWrite], int]
) -> Iterator[list[Piece]]:
    """Yield pieces with the same key, in the order of their jobs, up to as many elements as the work space allows.

    Args:
        key_of: key of writes that can be batched, which includes the length of rows.
        most: maximum elements at a time, by kind.
    """
    waiting: dict[tuple, list[Piece]] = {}
    sizes: dict[tuple, int] = {}
    for job in jobs:
        for write, source, slot in job.each():
            key, length = key_of(write, source), _length(write)
            for piece in _split(write, source, slot, max(1, most(write) // length)):
                size = piece.count * length
                if sizes.get(key, 0) and (size >= ALONE or sizes[key] + size > most(write)):
                    yield waiting.pop(key)
                    sizes[key] = 0
                if size >= ALONE:
                    yield [piece]
                else:
                    waiting.setdefault(key, []).append(piece)
                    sizes[key] = sizes.get(key, 0) + size
    yield from (pieces for pieces in waiting.values() if pieces)


def _length(write: RowWrite) -> int:
    return max(1, write.target.shape[1], write.whole[1] if write.whole else 0)


def _split(write: RowWrite, source: torch.Tensor, slot: int, most: int) -> Iterator[Piece]:
    """Split a write into pieces of about equal size with a maximum number of rows, at panel boundaries."""
    parts = -(-write.rows // most)
    step = -(-write.rows // max(1, parts))
    if most > SAMPLE:
        step = min(-(-step // SAMPLE), most // SAMPLE) * SAMPLE
    for start in range(0, write.rows, max(1, step)):
        yield Piece(write, source, slot, slice(start, min(start + step, write.rows)))


class Span(NamedTuple):
    """Rows at a constant distance in memory; units are elements, offsets are from the start of the storage."""

    source: torch.Tensor
    offset: int
    count: int
    strides: tuple[int, int]

    def followed_by(self, other: "Span") -> bool:
        end = self.offset + self.count * self.strides[0]
        return (end, self.strides) == (other.offset, other.strides) and _same_storage(self.source, other.source)

    def view(self, length: int) -> torch.Tensor:
        """Return a view (count, length) of the rows; the source itself if it is the same."""
        source, shape = self.source, (self.count, length)
        here = self.offset, self.strides
        if source.shape == shape and here == (source.storage_offset(), source.stride()):
            return source
        return source.as_strided(shape, self.strides, self.offset)


def _own(write: RowWrite) -> tuple[int, int]:
    return write.offset, write.target.shape[1]


def rows_of(pieces: Sequence[Piece], part: Callable[[RowWrite], tuple[int, int]] = _own) -> torch.Tensor:
    """Return the rows (N, K) of all sources, as a view if they are evenly spaced in memory, otherwise as a copy.

    Args:
        part: (offset, length) of a write's first row in its source. [default: the rows that are written]
    """
    spans: list[Span] = []
    for write, source, _, rows in pieces:
        offset, length = part(write)
        begin = source.storage_offset() + offset + rows.start * write.row_stride
        span = Span(source, begin, rows.stop - rows.start, (write.row_stride, write.column_stride))
        if spans and spans[-1].followed_by(span):
            spans[-1] = spans[-1]._replace(count=spans[-1].count + span.count)
        else:
            spans.append(span)
    found = [span.view(length) for span in spans]
    return found[0] if len(found) == 1 else torch.cat(found)


def _same_storage(mine: torch.Tensor, its: torch.Tensor) -> bool:
    return mine is its or mine.untyped_storage()._cdata == its.untyped_storage()._cdata
