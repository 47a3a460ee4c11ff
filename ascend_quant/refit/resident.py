"""Resident weights: the engine's own buffers, written row by row as shards arrive, and never moved.

`ResidentWeight` is one parameter that stays in its dtype (norms, embeddings, biases, routers).
`QuantizedWeight` is one whose rows are quantized on the way in (a linear layer, or a stack of experts); for scales that
are shared otherwise than by rows see scales.py. All know which of their rows the running refit has written, so
a missing or twice-written shard is seen. They turn a shard into moves; the kernels carry these out.

Rows run along every dimension but the last: a (E, N, K) stack of experts has E * N rows of K elements.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import torch

from ascend_quant.kernels.moves import SAMPLE, Move, Place
from ascend_quant.tensors import FLOATS
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.prequantized import TAIL, sent_shape


class Piece(NamedTuple):
    """A matrix of a shard and where it goes, with the scales' places, the whole rows and the given scales if any."""

    source: torch.Tensor
    target: torch.Tensor
    scale: torch.Tensor | None
    whole: torch.Tensor | None
    given: torch.Tensor | None

    def each(self, part: Callable[[torch.Tensor], torch.Tensor]) -> "Piece":
        """Return a piece of that part of each tensor."""
        scale, whole, given = (None if one is None else part(one) for one in self[2:])
        return Piece(part(self.source), part(self.target), scale, whole, given)


class ResidentWeight:
    """A parameter of the engine that keeps its dtype.

    Args:
        name: the engine's name of it.
        data: its buffer, contiguous; any shape. A vector counts as rows of one element.
        parts: (checkpoint name, rows) in the order of the rows, to name what is missing; by default one part.
        padded: whether the buffer has more rows than the checkpoint (a vocabulary rounded up for sharding).
        place: what puts the rows where they belong, if `data` is but a stand-in of their shape for the loaders.

    Attributes:
        wholes: (rows here, elements on all ranks together) of each tensor that the engine's loader knows a size of, in
            the order of the rows; none where that is not known.
        tensor: what the engine computes with.
        recount: whether the running refit wrote rows in a way that its digest must be read back from the buffers.
    """

    codes = 0  # elements that are quantized codes
    sampled = 0  # those of them that are compared with the former ones
    of_tensors = False  # whether each tensor that is loaded has one scale
    takes_codes = False  # whether they may come from a trainer, each row with its scale

    def __init__(
        self,
        name: str,
        data: torch.Tensor,
        parts: Sequence[tuple[str, int]] = (),
        padded: bool = False,
        place: Place | None = None,
    ):
        self.name, self.data, self.padded, self.place = name, data, padded, place
        self.tensor = data if place is None else place.tensor
        self.weight = 2 * zlib.crc32(name.encode()) + 1
        self.row_length = data.shape[-1] if data.dim() > 1 else 1
        self.row_count = data.numel() // max(self.row_length, 1)
        self.whole_length = self.row_length
        self.parts = list(parts) or [(name, self.row_count)]
        self.wholes: list[tuple[int, int]] = []
        self._storage = data.untyped_storage()._cdata
        self._mask: np.ndarray | None = None
        self.begin()

    def begin(self) -> None:
        """Forget which rows are written."""
        self._mask = None  # made when it is needed: a refit by plan does without
        self._writer: int | None = None
        self.unwritten = self.row_count
        self.recount = False

    def moves(
        self,
        view: torch.Tensor,
        shard: torch.Tensor,
        whole: torch.Tensor | None,
        writer: int,
        base: torch.Tensor,
        exact: bool = False,
        given: torch.Tensor | None = None,
        coded: bool = False,
    ) -> list[Move]:
        """Return the moves that write `shard` into `view`, whole rows of this buffer, which count as written.

        Args:
            whole: the complete rows that `shard` is a slice of along the last dimension, if it is one.
            writer: identifies the tensor, so that its own parts may overlap but two tensors may not.
            base: the tensor that the moves are relative to.
            exact: whether float32 values are quantized as they are, not rounded to BF16 first.
            given: float32, the scales of the shard's rows if they shall not get their own; nothing to a weight that
                keeps its dtype.
            coded: whether the shard is of codes, whose scales lie behind the rows of `whole` (see prequantized.py).

        Raises:
            RefitError: wrong shape or dtype, or rows that another tensor wrote in this refit.
        """
        self.check_dtype(shard.dtype, coded)
        if view.shape != shard.shape:
            raise RefitError(f"{self.name}: a shard of shape {tuple(shard.shape)} does not fit {tuple(view.shape)}")
        numbers = self._numbers(view)
        if self._written()[numbers].any():
            if self._writer != writer:
                raise RefitError(f"{self.name}: rows written twice in one refit; send every tensor once")
            self.recount = True
        rows = self._rows_of_codes(whole) if coded else self._checked(shard, whole, given)
        result = [self._move(piece, base, exact) for piece in self._pieces(shard, view, rows, given)]
        result = [replace(move, coded=True) for move in result] if coded else result
        self._mark(numbers, writer)
        return result

    def takes(self, dtype: torch.dtype, coded: bool = False) -> bool:
        """Return whether weights of this dtype may be sent for this parameter: integers are none of a float's.

        A parameter of integers (a routing table) takes its own dtype alone.

        Args:
            coded: whether they are codes.
        """
        if coded:
            return self.takes_codes and dtype == self.data.dtype
        return dtype in FLOATS if self._is_of_floats else dtype == self.data.dtype

    def check_dtype(self, dtype: torch.dtype, coded: bool = False) -> None:
        """Raise RefitError unless `takes`."""
        if self.takes(dtype, coded):
            return
        if coded:
            raise RefitError(f"{self.name}: got codes of {dtype}, which the engine does not keep so; send BF16 weights")
        how = ", the engine quantizes them itself" if self.codes else ""
        wanted = "BF16 weights" if self._is_of_floats else str(self.data.dtype)
        raise RefitError(f"{self.name}: got {dtype}; send {wanted}{how}")

    @property
    def _is_of_floats(self) -> bool:
        """True if floats are sent for this parameter, quantized or not."""
        return bool(self.codes) or self.data.is_floating_point()

    def example(self, exact: bool = False, frozen: bool = False, coded: bool = False) -> Move:
        """A move into this weight's first matrix, from nowhere: what is compiled for it serves its other moves too.

        Args:
            exact, frozen, coded: see `moves`; with given scales if `frozen`.
        """
        matrix = self.data[(0,) * (self.data.dim() - 2)]
        shape = matrix.shape if matrix.dim() < 2 else (matrix.shape[0], self.whole_length)
        whole = torch.empty(shape, dtype=torch.float32, device="meta")
        if coded:
            whole = torch.empty(sent_shape(shape), dtype=self.data.dtype, device="meta")[:, :-TAIL]
        shard = whole[..., : matrix.shape[-1]] if matrix.dim() else whole
        given = torch.empty(matrix.shape[:1], device="meta") if frozen else None
        rows = self._rows_of_codes(whole) if coded else self._checked(shard, whole, given)
        move = self._move(next(self._pieces(shard, matrix, rows, given)), whole, exact)
        return replace(move, coded=True) if coded else move

    def whole_sizes(self, view: torch.Tensor) -> dict[int, int]:
        """Return elements on all ranks of the tensors that `view` has rows of, by their index in `wholes`."""
        first = self._row_view(view)[0]
        last, start = first + view.numel() // max(self.row_length, 1), 0
        found: dict[int, int] = {}
        for place, (rows, elements) in enumerate(self.wholes):
            if first < start + rows and start < last:
                found[place] = elements
            start += rows
        return found

    def fill(self, view: torch.Tensor, value: float, writer: int) -> None:
        """Set the rows of `view`, which no shard carries (padding of a vocabulary), to a constant."""
        if self.place is not None:
            raise RefitError(f"{self.name}: a loader filled rows with {value}, which no tensor of the checkpoint holds")
        if view.numel():
            view.fill_(value)
            self.recount |= value != 0  # the digest of zeros is zero
            self._mark(self._numbers(view), writer)

    def mark(self, move: Move) -> None:
        """Note which rows a plan wrote, before a loader writes others."""
        self._written()[move.first_row : move.first_row + move.rows] = True

    def _written(self) -> np.ndarray:
        """Return the mask of written rows, on the host and in numpy: a microsecond where torch costs ten."""
        if self._mask is None:
            self._mask = np.zeros(self.row_count, dtype=bool)
        return self._mask

    def _mark(self, numbers: slice | np.ndarray, writer: int) -> None:
        mask = self._written()
        self.unwritten -= int(np.count_nonzero(~mask[numbers]))
        mask[numbers] = True
        self._writer = writer

    def _numbers(self, view: torch.Tensor) -> slice | np.ndarray:
        """The numbers of the rows that `view` is made of."""
        first, shape, strides = self._row_view(view)
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if view.untyped_storage()._cdata != self._storage or first < 0 or last >= max(self.row_count, 1):
            raise RefitError(
                f"{self.name}: a write of shape {tuple(view.shape)} goes elsewhere; give a view of its buffer"
            )
        if not shape or (len(shape) == 1 and strides[0] == 1):
            return slice(first, first + (shape[0] if shape else 1))
        numbers = np.array(first)
        for size, stride in zip(shape, strides, strict=True):
            numbers = numbers[..., None] + np.arange(size) * stride
        return numbers

    def rows(self, view: torch.Tensor, per_row: torch.Tensor) -> torch.Tensor:
        """The part of a per-row tensor that belongs to the rows of `view`.

        Raises:
            RefitError: when the view is not made of whole rows.
        """
        first, shape, strides = self._row_view(view)
        return per_row.view(-1).as_strided(shape, strides, first)

    def _row_view(self, view: torch.Tensor) -> tuple[int, Sequence[int], list[int]]:
        """The first row of a view, and its shape and strides in rows."""
        length = self.row_length
        offset = offset_in(view, self.data)
        strides = view.stride()
        shape = view.shape
        if self.data.dim() > 1:
            if not shape or shape[-1] != length or (length > 1 and strides[-1] != 1):
                raise RefitError(f"{self.name}: a write of shape {tuple(shape)} splits rows of {length} elements")
            shape, strides = shape[:-1], strides[:-1]
        if offset % length or any(stride % length for stride, size in zip(strides, shape, strict=True) if size > 1):
            raise RefitError(f"{self.name}: a write of shape {tuple(view.shape)} does not start at whole rows")
        return offset // length, shape, [stride // length for stride in strides]

    def missing(self) -> list[str]:
        """The checkpoint names of the parts that this refit has not written whole, as far as its loaders tell."""
        if self.unwritten == 0:
            return []
        ends = np.cumsum([rows for _, rows in self.parts])
        pieces = np.split(self._written(), ends[:-1])
        return [part for (part, _), rows in zip(self.parts, pieces, strict=True) if not rows.all()]

    def tensors(self) -> list[tuple[torch.Tensor | Place, int]]:
        """The buffers whose bytes the digest covers, each with its weight in the digest of all residents."""
        return [(self.place or self.data, self.weight)]

    def sampled_codes(self) -> torch.Tensor | None:
        """A view of the memory that holds the codes of the sampled rows; None where there are none, or no such view."""
        return None

    def refresh(self) -> None:
        """Bring up to date what the engine derives from this weight and does not read from it."""

    def edge_move(self, first_row: int) -> tuple[Move, torch.Tensor]:
        """Return the move, and its source, that quantizes the block beginning at this row once all its rows have come.

        Raises:
            NotImplementedError: scales are not shared by blocks, so no move has a part in one.
        """
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no blocks")

    def _checked(
        self, shard: torch.Tensor, whole: torch.Tensor | None, given: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the whole rows if the scale needs them."""
        return None

    def _rows_of_codes(self, whole: torch.Tensor | None) -> torch.Tensor:
        """Return the whole rows of codes, their scales behind them; RefitError where the engine rearranges rows."""
        if whole is None or whole.shape[-1] != self.whole_length:
            raise RefitError(
                f"{self.name}: the engine rearranges the rows, so their scales are not found; send BF16 weights"
            )
        return whole

    def _scale_of(self, view: torch.Tensor) -> torch.Tensor | None:
        return None

    def _pieces(
        self, shard: torch.Tensor, view: torch.Tensor, whole: torch.Tensor | None, given: torch.Tensor | None
    ) -> Iterator[Piece]:
        """Matrices whose target rows follow each other."""
        if self.data.dim() < 2:  # a vector is a column
            shard, view = shard.unsqueeze(-1), view.unsqueeze(-1)
        scale = self._scale_of(view)
        yield from _matrices(Piece(shard, view, scale, whole, None if scale is None else given), self.row_length)

    def _move(self, piece: Piece, base: torch.Tensor, exact: bool) -> Move:
        source_NK, target_NK, scale, whole_NL, given_N = piece
        return Move(
            target_NK,
            scale,
            first_row=offset_in(target_NK, self.data) // max(self.row_length, 1),
            weight=self.weight,
            offset=offset_in(source_NK, base),
            row_stride=source_NK.stride(0),
            column_stride=source_NK.stride(1),
            whole=None if whole_NL is None else (offset_in(whole_NL, base), whole_NL.shape[1]),
            exact=exact and scale is not None,
            given_N=None if given_N is None else given_N.contiguous(),
            place=self.place,
        )


class QuantizedWeight(ResidentWeight):
    """Codes (..., N, K) and scales (..., N) float32 of a linear layer or a stack of experts.

    Args:
        scale: float32, one element a row, contiguous; a trailing dimension of 1 is welcome.
        whole_length: K of the unsharded weight. Where it is larger than the codes' K (tensor parallel), a row-parallel
            layer's scale comes from the whole row, so that the bytes equal slices of the unsharded ones.
        copies: tensors of as many elements as `scale` that hold the scales in another dtype.
    """

    takes_codes = True

    def __init__(
        self,
        name: str,
        codes: torch.Tensor,
        scale: torch.Tensor,
        whole_length: int,
        parts: Sequence[tuple[str, int]] = (),
        place: Place | None = None,
        copies: Sequence[torch.Tensor] = (),
    ):
        super().__init__(name, codes, parts, place=place)
        self.copies = list(copies)
        self.scale = scale
        self.whole_length = whole_length
        self.codes = codes.numel()
        self.sampled = -(-self.row_count // SAMPLE) * self.row_length

    def tensors(self) -> list[tuple[torch.Tensor | Place, int]]:
        return [(self.place or self.data, self.weight), (self.scale.view(-1), 3 * self.weight)]

    def sampled_codes(self) -> torch.Tensor | None:
        return self.data.view(-1, self.row_length)[::SAMPLE] if self.place is None else self.place.sampled()

    def refresh(self) -> None:
        for copy in self.copies:
            copy.view(-1).copy_(self.scale.view(-1))

    def _scale_of(self, view: torch.Tensor) -> torch.Tensor:
        return self.rows(view, self.scale)

    def _checked(
        self, shard: torch.Tensor, whole: torch.Tensor | None, given: torch.Tensor | None
    ) -> torch.Tensor | None:
        if shard.shape[-1] == self.whole_length or given is not None:
            return None
        if whole is None or whole.shape[-1] != self.whole_length:
            raise RefitError(
                f"{self.name}: a slice of {shard.shape[-1]} of {self.whole_length} input channels came without "
                "the rest of its rows, which its scale needs; send whole tensors"
            )
        return whole


def _matrices(piece: Piece, length: int) -> Iterator[Piece]:
    """Split stacks of matrices into as few (N, K) pieces as their strides allow; one row is a matrix of one row."""
    target = piece.target
    if target.dim() == 1:
        yield piece.each(itemgetter(None))
    elif target.dim() == 2 and (target.shape[0] == 1 or target.stride(0) == length):
        yield piece
    elif target.dim() == 3 and all(one is None or _flattens(one) for one in (piece.source, target, piece.whole)):
        yield from _matrices(piece.each(lambda stack: stack.flatten(0, 1)), length)
    else:
        for i in range(target.shape[0]):
            yield from _matrices(piece.each(itemgetter(i)), length)


def offset_in(view: torch.Tensor, tensor: torch.Tensor) -> int:
    """Return how many elements a view begins behind the first element of a tensor."""
    return int(view.storage_offset()) - int(tensor.storage_offset())  # symbolic in graphs alone


def _flattens(tensor: torch.Tensor) -> bool:
    """Return whether the first two dimensions are one, as far as addresses go."""
    return tensor.stride(0) == tensor.shape[1] * tensor.stride(1)
