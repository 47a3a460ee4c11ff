"""Resident weights: the engine's own buffers, which a refit writes row by row and never moves.

`ResidentWeight` is a parameter that keeps its dtype (norms, embeddings, biases, routers). `QuantizedWeight` is a
parameter whose rows are quantized while they are written (a linear layer, or stacked experts); scales.py has those
without one scale per row. All of them turn a shard into writes, which the kernels execute; row_buffer.py tracks which
rows the current refit has written.
"""

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ascend_quant.kernels.counters import SAMPLE
from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.kernels.writes import CopyWrite, Fp8Write, Int8Write, PrequantizedWrite, RowWrite
from ascend_quant.refit.matrices import Piece, matrices_of, offset_in
from ascend_quant.refit.row_buffer import RowBuffer
from ascend_quant.schemes.tensors import FLOATS
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.prequantized import TAIL, sent_shape


class ResidentWeight(RowBuffer):
    """A parameter of the engine that keeps its dtype.

    Args:
        name, data, parts: see `RowBuffer`.
        padded: whether the buffer has more rows than the checkpoint (a vocabulary rounded up for sharding).
        layout: writes the rows to their places, if `data` is only a placeholder of their shape for the loaders.

    Attributes:
        tensor: the buffer that the engine's kernels read.
    """

    codes = 0  # number of quantized elements
    sampled = 0  # number of those that are compared with the previous ones
    of_tensors = False  # whether each loaded tensor has one scale
    takes_codes = False  # whether a trainer may send them pre-quantized, each row with its scale

    def __init__(
        self,
        name: str,
        data: torch.Tensor,
        parts: Sequence[tuple[str, int]] = (),
        padded: bool = False,
        layout: WeightLayout | None = None,
    ):
        super().__init__(name, data, parts)
        self.padded, self.layout = padded, layout
        self.tensor = data if layout is None else layout.tensor
        self.weight = 2 * zlib.crc32(name.encode()) + 1
        self.whole_length = self.row_length

    def writes(
        self,
        view: torch.Tensor,
        shard: torch.Tensor,
        whole: torch.Tensor | None,
        writer: int,
        base: torch.Tensor,
        skip_bf16_cast: bool = False,
        static_scale: torch.Tensor | None = None,
        prequantized: bool = False,
    ) -> list[RowWrite]:
        """Return the writes of `shard` into `view`, which consists of whole rows of this buffer; they count as written.

        Args:
            whole: the complete rows of which `shard` is a slice along the last dimension; None if it is no slice.
            writer: identifies the tensor, so that its own parts may overlap but two tensors may not.
            base: the tensor that the writes are relative to.
            skip_bf16_cast: whether float32 values are quantized without rounding to BF16 first.
            static_scale: float32, fixed scales of the shard's rows; None to compute scales. Ignored by a weight that
                keeps its dtype.
            prequantized: whether the shard contains codes, whose scales follow the rows of `whole`.

        Raises:
            RefitError: the shape or dtype is wrong, or another tensor has written the rows in this refit.
        """
        self.check_dtype(shard.dtype, prequantized)
        if view.shape != shard.shape:
            raise RefitError(f"{self.name}: a shard of shape {tuple(shard.shape)} does not fit {tuple(view.shape)}")
        numbers = self._numbers(view)
        self._check_unwritten(numbers, writer)
        rows = self._rows_of_codes(whole) if prequantized else self._checked(shard, whole, static_scale)
        pieces = self._pieces(shard, view, rows, static_scale)
        result = [self._write(piece, base, skip_bf16_cast, prequantized) for piece in pieces]
        self._mark(numbers, writer)
        return result

    def takes(self, dtype: torch.dtype, prequantized: bool = False) -> bool:
        """Return whether weights of this dtype may be sent for this parameter; integers are not accepted for floats.

        A parameter of integers (a routing table) accepts only its own dtype.

        Args:
            prequantized: whether the weights are pre-quantized.
        """
        if prequantized:
            return self.takes_codes and dtype == self.data.dtype
        return dtype in FLOATS if self._is_of_floats else dtype == self.data.dtype

    def check_dtype(self, dtype: torch.dtype, prequantized: bool = False) -> None:
        """Raise RefitError unless `takes`."""
        if self.takes(dtype, prequantized):
            return
        if prequantized:
            raise RefitError(
                f"{self.name}: got pre-quantized {dtype} weights, which the engine does not accept for this "
                "parameter; send BF16 weights"
            )
        how = ", the engine quantizes them itself" if self.codes else ""
        wanted = "BF16 weights" if self._is_of_floats else str(self.data.dtype)
        raise RefitError(f"{self.name}: got {dtype}; send {wanted}{how}")

    @property
    def _is_of_floats(self) -> bool:
        """True if floats are sent for this parameter, whether it is quantized or not."""
        return bool(self.codes) or self.data.is_floating_point()

    def example(self, skip_bf16_cast: bool = False, static_scale: bool = False, prequantized: bool = False) -> RowWrite:
        """Return a write without a source into this weight's first matrix, for compiling its kernel.

        Args:
            skip_bf16_cast, static_scale, prequantized: see `writes`.
        """
        matrix = self.data[(0,) * (self.data.dim() - 2)]
        shape = matrix.shape if matrix.dim() < 2 else (matrix.shape[0], self.whole_length)
        whole = torch.empty(shape, dtype=torch.float32, device="meta")
        if prequantized:
            whole = torch.empty(sent_shape(shape), dtype=self.data.dtype, device="meta")[:, :-TAIL]
        shard = whole[..., : matrix.shape[-1]] if matrix.dim() else whole
        scales = torch.empty(matrix.shape[:1], device="meta") if static_scale else None
        rows = self._rows_of_codes(whole) if prequantized else self._checked(shard, whole, scales)
        return self._write(next(self._pieces(shard, matrix, rows, scales)), whole, skip_bf16_cast, prequantized)

    def fill(self, view: torch.Tensor, value: float, writer: int) -> None:
        """Set the rows of `view`, which no shard contains (vocabulary padding), to a constant."""
        if self.layout is not None:
            raise RefitError(
                f"{self.name}: a weight loader filled rows with {value}, a value that is in no tensor of the checkpoint"
            )
        if view.numel():
            view.fill_(value)
            self.recount |= value != 0  # the digest of zeros is zero
            self._mark(self._numbers(view), writer)

    def tensors(self) -> list[tuple[torch.Tensor | WeightLayout, int]]:
        """Return the buffers that the digest covers, each with its weight in the digest of all residents."""
        return [(self.layout or self.data, self.weight)]

    def sampled_codes(self) -> torch.Tensor | None:
        """Return a view of the memory that contains the sampled rows' codes; None if there is no such view."""
        return None

    def refresh(self) -> None:
        """Update the buffers that the engine derives from this weight."""

    def edge_write(self, first_row: int) -> tuple[RowWrite, torch.Tensor]:
        """Return the write, and its source, that quantizes the block at this row once its rows have arrived.

        Raises:
            NotImplementedError: scales are not shared by blocks.
        """
        raise NotImplementedError(f"{self.name}: {type(self).__name__} has no blocks")

    def _checked(
        self, shard: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None
    ) -> torch.Tensor | None:
        """Return the whole rows if the scale needs them."""
        return None

    def _rows_of_codes(self, whole: torch.Tensor | None) -> torch.Tensor:
        """Return the whole rows of codes, followed by their scales; raise RefitError if the engine rearranges rows."""
        if whole is None or whole.shape[-1] != self.whole_length:
            raise RefitError(
                f"{self.name}: the engine rearranges the rows, so the scales cannot be matched to them; send "
                "BF16 weights"
            )
        return whole

    def _scale_of(self, view: torch.Tensor) -> torch.Tensor | None:
        return None

    def _pieces(
        self, shard: torch.Tensor, view: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None
    ) -> Iterator[Piece]:
        """Return matrices whose target rows are contiguous."""
        if self.data.dim() < 2:  # a vector is a column
            shard, view = shard.unsqueeze(-1), view.unsqueeze(-1)
        scale = self._scale_of(view)
        static_scale = None if scale is None else static_scale
        yield from matrices_of(Piece(shard, view, scale, whole, static_scale), self.row_length)

    def _write(self, piece: Piece, base: torch.Tensor, skip_bf16_cast: bool, prequantized: bool) -> RowWrite:
        return CopyWrite(**self._where(piece, base))

    def _where(self, piece: Piece, base: torch.Tensor) -> dict[str, Any]:
        """Return the fields of `RowWrite` for a piece, and the destination of its scales."""
        source_NK, target_NK, scale, whole_NL, _ = piece
        where: dict[str, Any] = {
            "target": target_NK,
            "layout": self.layout,
            "first_row": offset_in(target_NK, self.data) // max(self.row_length, 1),
            "weight": self.weight,
            "offset": offset_in(source_NK, base),
            "row_stride": source_NK.stride(0),
            "column_stride": source_NK.stride(1),
            "whole": None if whole_NL is None else (offset_in(whole_NL, base), whole_NL.shape[1]),
        }
        if scale is not None:
            where["scale"] = scale
        return where


class QuantizedWeight(ResidentWeight):
    """Quantized weight (..., N, K) and float32 scales (..., N) of a linear layer or stacked experts.

    Args:
        scale: float32, one element per row, contiguous; a trailing dimension of 1 is allowed.
        whole_length: K of the unsharded weight. If it is larger than the buffer's K (tensor parallelism), a
            row-parallel layer's scale is computed from the complete row, so that the bytes equal slices of the
            unsharded weight.
        copies: tensors of the same size as `scale` with the scales in another dtype.
    """

    takes_codes = True

    def __init__(
        self,
        name: str,
        codes: torch.Tensor,
        scale: torch.Tensor,
        whole_length: int,
        parts: Sequence[tuple[str, int]] = (),
        layout: WeightLayout | None = None,
        copies: Sequence[torch.Tensor] = (),
    ):
        super().__init__(name, codes, parts, layout=layout)
        self.copies = list(copies)
        self.scale = scale
        self.whole_length = whole_length
        self.codes = codes.numel()
        self.sampled = -(-self.row_count // SAMPLE) * self.row_length

    def tensors(self) -> list[tuple[torch.Tensor | WeightLayout, int]]:
        return [(self.layout or self.data, self.weight), (self.scale.view(-1), 3 * self.weight)]

    def sampled_codes(self) -> torch.Tensor | None:
        return self.data.view(-1, self.row_length)[::SAMPLE] if self.layout is None else self.layout.sampled()

    def refresh(self) -> None:
        for copy in self.copies:
            copy.view(-1).copy_(self.scale.view(-1))

    def _scale_of(self, view: torch.Tensor) -> torch.Tensor:
        return self.rows(view, self.scale)

    def _checked(
        self, shard: torch.Tensor, whole: torch.Tensor | None, static_scale: torch.Tensor | None
    ) -> torch.Tensor | None:
        if shard.shape[-1] == self.whole_length or static_scale is not None:
            return None
        if whole is None or whole.shape[-1] != self.whole_length:
            raise RefitError(
                f"{self.name}: a slice of {shard.shape[-1]} of {self.whole_length} input channels was sent, "
                "but the scale needs complete rows; send whole tensors"
            )
        return whole

    def _write(self, piece: Piece, base: torch.Tensor, skip_bf16_cast: bool, prequantized: bool) -> RowWrite:
        if prequantized:
            return PrequantizedWrite(**self._where(piece, base))
        if not skip_bf16_cast and piece.static_scale is None:
            return self._write_of_bf16(piece, base)
        if not self.takes_codes or self.data.dtype != torch.int8:
            raise RefitError(
                f"{self.name}: float32 values or static scales for {self.data.dtype}: only int8 with one "
                "scale per row supports them; use scheme int8, or no profile"
            )
        static_scale = None if piece.static_scale is None else piece.static_scale.contiguous()
        return Int8Write(static_scale=static_scale, skip_bf16_cast=skip_bf16_cast, **self._where(piece, base))

    def _write_of_bf16(self, piece: Piece, base: torch.Tensor) -> RowWrite:
        """Return the write of values that are rounded to BF16 first."""
        kind = Int8Write if self.data.dtype == torch.int8 else Fp8Write
        return kind(**self._where(piece, base))
