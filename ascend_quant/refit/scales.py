"""Quantized weights with scales other than one per row.

TensorScaledWeight   one scale per tensor of the checkpoint, repeated for each of its rows
BlockScaledWeight    one scale per 128x128 block of the engine's matrix; a block may span two tensors
GroupScaledWeight    one scale per group of a row's elements: int4
DefinedWeight        scales of a row as defined by the scheme's file, for schemes without kernels
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch

from ascend_quant.kernels.storage import RefreshedLayout, WeightLayout
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, Int4Write, RowWrite, SchemeWrite
from ascend_quant.oracle import BLOCK
from ascend_quant.refit.matrices import Piece
from ascend_quant.refit.resident import QuantizedWeight, ResidentWeight
from ascend_quant.schemes import Scheme, definition_of
from ascend_quant.transfer.errors import RefitError


class TensorScaledWeight(QuantizedWeight):
    """fp8 codes (.., N, K), with the scale of its checkpoint tensor for each row."""

    of_tensors, takes_codes = True, False

    def _write_of_bf16(self, piece: Piece, base: torch.Tensor) -> RowWrite:
        write = Fp8Write(**self._where(piece, base))
        start, length = write.whole or (write.offset, write.target.shape[1])
        fits = base.dim() == 2 and base.is_contiguous() and base.shape[1] == length and start % length == 0
        if not fits or (write.rows > 1 and (write.row_stride, write.column_stride) != (length, 1)):
            raise RefitError(
                f"{self.name}: the engine rearranges its shard of the tensor of shape {tuple(base.shape)}, so "
                "the scale cannot be computed; use scheme fp8"
            )
        return replace(write, row_stride=length, tensor_rows=(start // length, base.shape[0]))


class BlockScaledWeight(QuantizedWeight):
    """fp8 codes (.., N, K) and scales (.., ceil(N / 128), ceil(K / 128)) of this rank's matrices.

    Rows of a block that spans several tensors are buffered in BF16 until the refit closes. They are few, and there are
    none if tensors have multiples of 128 rows.
    """

    takes_codes = False

    def __init__(self, *arguments: Any, **more: Any):
        super().__init__(*arguments, **more)
        self.matrix_rows, self.matrix_blocks = self.data.shape[-2], self.scale.shape[-2]
        self._edges: dict[int, torch.Tensor] = {}  # by the first row of a block

    def tensors(self) -> list[tuple[torch.Tensor | WeightLayout, int]]:
        return [(self.data, self.weight), (self.scale, 3 * self.weight)]

    def edge_write(self, first_row: int) -> tuple[RowWrite, torch.Tensor]:
        edge = self._edges[first_row]
        target = self.data.flatten(0, -2)[first_row : first_row + len(edge)]
        scale, first_block = self._scales(first_row, len(edge)), self._block(first_row)
        where = {"first_row": first_row, "weight": self.weight, "scale": scale, "first_block": first_block}
        return Fp8Write.of(edge, target, **where), edge

    def _checked(self, shard: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None) -> None:
        """Return None, for no whole rows: every rank has its own blocks."""

    def _pieces(
        self, shard: torch.Tensor, view: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None
    ) -> Iterator[Piece]:
        if view.dim() == 3:
            for source_NK, target_NK in zip(shard, view, strict=True):
                yield from self._pieces(source_NK, target_NK, None, None)
            return
        first, _, _ = self._row_view(view)
        for start, stop in self._cuts(first, first + len(view)):
            rows = slice(start - first, stop - first)
            yield Piece(shard[rows], view[rows], None, None, None)

    def _cuts(self, first: int, last: int) -> Iterator[tuple[int, int]]:
        """Split rows into those of complete blocks and those of blocks shared with other tensors."""
        start, stop = self._block_rows(first)
        whole_from = first if start == first else min(stop, last)
        start, stop = self._block_rows(last - 1)
        whole_to = last if stop == last else max(start, whole_from)
        return pairwise(sorted({first, whole_from, whole_to, last}))

    def _write_of_bf16(self, piece: Piece, base: torch.Tensor) -> RowWrite:
        where = self._where(piece, base)
        first = where["first_row"]
        last = first + len(piece.target)
        start, stop = self._block_rows(first)
        if start == first and self._block_rows(last - 1)[1] == last:
            return Fp8Write(scale=self._scales(first, last - first), first_block=self._block(first), **where)
        if start not in self._edges:
            shape = (stop - start, self.row_length)
            self._edges[start] = torch.zeros(shape, dtype=torch.bfloat16, device=self.data.device)
        kept: dict[str, Any] = {"target": self._edges[start][first - start : last - start], "weight": 0}
        return CopyWrite(edge_block=start, **where | kept)

    def _block_rows(self, row: int) -> tuple[int, int]:
        """Return the first row of the block that contains a row, and the end of the block."""
        within = row % self.matrix_rows
        start = row - within % BLOCK
        return start, min(start + BLOCK, row - within + self.matrix_rows)

    def _block(self, first_row: int) -> int:
        """Return the scale row of the block that begins at this row."""
        matrix, within = divmod(first_row, self.matrix_rows)
        return matrix * self.matrix_blocks + within // BLOCK

    def _scales(self, first_row: int, rows: int) -> torch.Tensor:
        first = self._block(first_row)
        return self.scale.flatten(0, -2)[first : first - (-rows // BLOCK)]


class ScaledRowsWeight(QuantizedWeight):
    """Codes (.., N, K) and scales (.., N, S): every row has its own scales, and is complete on every rank."""

    takes_codes = False

    @property
    def per_row(self) -> int:
        """The number of scales of a row."""
        return self.scale.shape[-1]

    def tensors(self) -> list[tuple[torch.Tensor | WeightLayout, int]]:
        return [(self.layout or self.data, self.weight), (self.scale, 3 * self.weight)]

    def _checked(self, shard: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None) -> None:
        """Return None, for no whole rows: elements that share a scale are on the same rank."""

    def _scale_of(self, view: torch.Tensor) -> torch.Tensor:
        first, shape, strides = self._row_view(view)
        strides = (*(stride * self.per_row for stride in strides), 1)
        return self.scale.view(-1).as_strided((*shape, self.per_row), strides, first * self.per_row)


class GroupScaledWeight(ScaledRowsWeight):
    """int4 codes in the order of a layout, and BF16 scales (.., N, K / group)."""

    layout: RefreshedLayout

    def refresh(self) -> None:
        self.layout.refresh()

    def _write_of_bf16(self, piece: Piece, base: torch.Tensor) -> RowWrite:
        return Int4Write(group=self.row_length // self.per_row, **self._where(piece, base))


class DefinedWeight(ScaledRowsWeight):
    """Codes and scales of a scheme without kernels, whose rows its own definition quantizes.

    Args:
        scheme: the scheme; its scales must depend only on a row's elements on one rank.
    """

    def __init__(self, *arguments: Any, scheme: Scheme, **more: Any):
        super().__init__(*arguments, **more)
        self.scheme = scheme

    def _write_of_bf16(self, piece: Piece, base: torch.Tensor) -> RowWrite:
        return SchemeWrite(scheme=self.scheme, **self._where(piece, base))


BY_SHARING = {
    "row": QuantizedWeight,
    "tensor": TensorScaledWeight,
    "block": BlockScaledWeight,
    "group": GroupScaledWeight,
}


def resident_class(scheme: Scheme) -> Callable[..., ResidentWeight]:
    """Return the constructor of a scheme's resident weights; its arguments are those of `QuantizedWeight`.

    Raises:
        UnregisteredScheme: the scheme is not registered.
        ValueError: the scheme does not quantize, so its weights are plain `ResidentWeight`s.
    """
    if definition_of(scheme).by_definition:
        return partial(DefinedWeight, scheme=scheme)
    if scheme.shares is None:
        raise ValueError(f"scheme {scheme.name} is not quantized: use a ResidentWeight for each weight")
    return BY_SHARING[scheme.shares]
