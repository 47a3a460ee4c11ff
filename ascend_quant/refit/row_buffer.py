"""A buffer of the engine as rows; tracks which rows the current refit has written, to detect gaps and duplicates.

Rows run along every dimension but the last: a (E, N, K) stack of experts has E * N rows of K elements.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ascend_quant.kernels.writes import RowWrite
from ascend_quant.refit.matrices import offset_in
from ascend_quant.transfer.errors import RefitError


class RowBuffer:
    """The rows of a buffer, with a record of those that are written.

    Args:
        name: the engine's name of the buffer.
        data: contiguous, any shape. A vector counts as rows of one element.
        parts: (checkpoint name, rows) in the order of the rows, to name missing tensors; by default one part.

    Attributes:
        wholes: (rows on this rank, elements on all ranks) of each tensor whose size the engine's loader knows, in the
            order of the rows; empty if unknown.
        unwritten: number of rows that the current refit has not written.
        recount: whether the current refit wrote rows whose digest must be read back from the buffers.
    """

    def __init__(self, name: str, data: torch.Tensor, parts: Sequence[tuple[str, int]] = ()):
        self.name, self.data = name, data
        self.row_length = data.shape[-1] if data.dim() > 1 else 1
        self.row_count = data.numel() // max(self.row_length, 1)
        self.parts = list(parts) or [(name, self.row_count)]
        self.wholes: list[tuple[int, int]] = []
        self._storage = data.untyped_storage()._cdata
        self._mask: np.ndarray | None = None
        self.begin()

    def begin(self) -> None:
        """Reset the record of written rows."""
        self._mask = None  # created on demand; a refit by plan does not need it
        self._writer: int | None = None
        self.unwritten = self.row_count
        self.recount = False

    def mark(self, write: RowWrite) -> None:
        """Record the rows that a plan wrote, before a loader writes others."""
        self._written()[write.first_row : write.first_row + write.rows] = True

    def missing(self) -> list[str]:
        """Return the checkpoint names of the parts that this refit has not written completely, as far as is known."""
        if self.unwritten == 0:
            return []
        ends = np.cumsum([rows for _, rows in self.parts])
        pieces = np.split(self._written(), ends[:-1])
        return [part for (part, _), rows in zip(self.parts, pieces, strict=True) if not rows.all()]

    def whole_sizes(self, view: torch.Tensor) -> dict[int, int]:
        """Return the elements on all ranks of the tensors that have rows in `view`, by their index in `wholes`."""
        first = self._row_view(view)[0]
        last, start = first + view.numel() // max(self.row_length, 1), 0
        found: dict[int, int] = {}
        for place, (rows, elements) in enumerate(self.wholes):
            if first < start + rows and start < last:
                found[place] = elements
            start += rows
        return found

    def rows(self, view: torch.Tensor, per_row: torch.Tensor) -> torch.Tensor:
        """Return the part of a per-row tensor that belongs to the rows of `view`.

        Raises:
            RefitError: the view does not consist of whole rows.
        """
        first, shape, strides = self._row_view(view)
        return per_row.view(-1).as_strided(shape, strides, first)

    def _check_unwritten(self, numbers: slice | np.ndarray, writer: int) -> None:
        """Raise RefitError for rows that another writer has written; rows of the same writer may overlap."""
        if self._written()[numbers].any():
            if self._writer != writer:
                raise RefitError(f"{self.name}: rows were written twice in one refit; send every tensor once")
            self.recount = True

    def _mark(self, numbers: slice | np.ndarray, writer: int) -> None:
        mask = self._written()
        self.unwritten -= int(np.count_nonzero(~mask[numbers]))
        mask[numbers] = True
        self._writer = writer

    def _written(self) -> np.ndarray:
        """Return the mask of written rows, on the host and in numpy, which is ten times as fast as torch here."""
        if self._mask is None:
            self._mask = np.zeros(self.row_count, dtype=bool)
        return self._mask

    def _numbers(self, view: torch.Tensor) -> slice | np.ndarray:
        """Return the indexes of the rows of which `view` consists."""
        first, shape, strides = self._row_view(view)
        last = first + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        if view.untyped_storage()._cdata != self._storage or first < 0 or last >= max(self.row_count, 1):
            raise RefitError(
                f"{self.name}: a write of shape {tuple(view.shape)} is not a view of this parameter's buffer; "
                "write to a view of it"
            )
        if not shape or (len(shape) == 1 and strides[0] == 1):
            return slice(first, first + (shape[0] if shape else 1))
        numbers = np.array(first)
        for size, stride in zip(shape, strides, strict=True):
            numbers = numbers[..., None] + np.arange(size) * stride
        return numbers

    def _row_view(self, view: torch.Tensor) -> tuple[int, Sequence[int], list[int]]:
        """Return the first row of a view, and its shape and strides in rows."""
        length = self.row_length
        offset = offset_in(view, self.data)
        strides = view.stride()
        shape = view.shape
        if self.data.dim() > 1:
            if not shape or shape[-1] != length or (length > 1 and strides[-1] != 1):
                raise RefitError(f"{self.name}: a write of shape {tuple(shape)} splits rows of {length} elements")
            shape, strides = shape[:-1], strides[:-1]
        if offset % length or any(stride % length for stride, size in zip(strides, shape, strict=True) if size > 1):
            raise RefitError(f"{self.name}: a write of shape {tuple(view.shape)} does not start at a row boundary")
        return offset // length, shape, [stride // length for stride in strides]
