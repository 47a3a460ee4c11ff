"""Resident weights: the engine's own buffers, written row by row as shards arrive, and never moved.

`ResidentWeight` is one parameter that stays in its dtype (norms, embeddings, biases, routers).
`QuantizedWeight` is one whose rows are quantized on the way in (a linear layer, or a stack of experts).
Both know which of their rows the running refit has written, so a missing or twice-written shard is seen.

Rows run along every dimension but the last: a (E, N, K) stack of experts has E * N rows of K elements.
"""

from collections.abc import Iterator, Sequence

import torch

from ascend_quant.kernels import kernels_for


class RefitError(RuntimeError):
    """A refit that cannot be trusted; the message names the parameter and what to do."""


class ResidentWeight:
    """One parameter of the engine that keeps its dtype.

    Args:
        name: the engine's name of it.
        data: its buffer, contiguous; any shape. A vector counts as rows of one element.
        parts: (checkpoint name, rows) in the order of the rows, to name what is missing; by default one part.
        padded: whether the buffer has more rows than the checkpoint (a vocabulary rounded up for sharding).
    """

    codes = 0  # elements that are quantized codes

    def __init__(self, name: str, data: torch.Tensor, parts: Sequence[tuple[str, int]] = (), padded: bool = False):
        self.name, self.data, self.padded = name, data, padded
        self.row_length = data.shape[-1] if data.dim() > 1 else 1
        self.parts = list(parts) or [(name, data.numel() // max(self.row_length, 1))]
        self.changed = 0
        self._written = torch.zeros(data.shape[:-1] if data.dim() > 1 else data.shape, dtype=torch.bool)
        self._writer: object = None
        self.unwritten = self._written.numel()

    def begin(self) -> None:
        """Forget which rows are written."""
        self._written.zero_()
        self._writer = None
        self.unwritten = self._written.numel()
        self.changed = 0

    def write(self, view: torch.Tensor, source: torch.Tensor, whole: torch.Tensor | None, writer: object) -> None:
        """Put `source` into `view`, a view of this buffer made of whole rows.

        Args:
            whole: the complete rows that `source` is a slice of along the last dimension, if it is one.
            writer: identifies the shard, so that its own parts may overlap but two shards may not.

        Raises:
            RefitError: wrong shape, NaN or Inf, or rows that another shard wrote in this refit.
        """
        if view.shape != source.shape:
            raise RefitError(f"{self.name}: a shard of shape {tuple(source.shape)} does not fit {tuple(view.shape)}")
        written = self.rows(view, self._written)
        if written.any() and self._writer is not writer:
            raise RefitError(f"{self.name}: rows written twice in one refit; send every tensor once")
        nonfinite = self._store(view, source, whole)
        if nonfinite:
            raise RefitError(f"{self.name}: {nonfinite} of {source.numel()} elements are NaN or Inf")
        self._mark(written, writer)

    def fill(self, view: torch.Tensor, value: float, writer: object) -> None:
        """Set the rows of `view`, which no shard carries (padding of a vocabulary), to a constant."""
        if view.numel():
            view.fill_(value)
            self._mark(self.rows(view, self._written), writer)

    def _mark(self, written: torch.Tensor, writer: object) -> None:
        self.unwritten -= written.numel() - int(written.sum())
        written.fill_(True)
        self._writer = writer

    def rows(self, view: torch.Tensor, per_row: torch.Tensor) -> torch.Tensor:
        """The part of a per-row tensor that belongs to the rows of `view`.

        Raises:
            RefitError: when the view is not made of whole rows.
        """
        length = self.row_length
        offset = view.storage_offset() - self.data.storage_offset()
        strides = view.stride()
        shape = view.shape
        if self.data.dim() > 1:
            if not shape or shape[-1] != length or (length > 1 and strides[-1] != 1):
                raise RefitError(f"{self.name}: a write of shape {tuple(shape)} splits rows of {length} elements")
            shape, strides = shape[:-1], strides[:-1]
        if offset % length or any(stride % length for stride, size in zip(strides, shape, strict=True) if size > 1):
            raise RefitError(f"{self.name}: a write of shape {tuple(view.shape)} does not start at whole rows")
        return per_row.view(-1).as_strided(shape, [stride // length for stride in strides], offset // length)

    def missing(self) -> list[str]:
        """The checkpoint names of the parts that this refit has not written whole."""
        if self.unwritten == 0:
            return []
        written = self._written.view(-1)
        sizes = [rows for _, rows in self.parts]
        return [part for (part, _), rows in zip(self.parts, written.split(sizes), strict=True) if not bool(rows.all())]

    def tensors(self) -> list[torch.Tensor]:
        """The buffers whose bytes the digest covers."""
        return [self.data]

    def digest(self) -> int:
        """64-bit fingerprint of the resident bytes."""
        return sum(kernels_for(tensor.device).digest(tensor) * (2 * i + 1) for i, tensor in enumerate(self.tensors()))

    def _store(self, view: torch.Tensor, source: torch.Tensor, whole: torch.Tensor | None) -> int:
        return kernels_for(view.device).copy_into(source, view)


class QuantizedWeight(ResidentWeight):
    """Codes (..., N, K) int8 and scales (..., N) float32 of a linear layer or a stack of experts.

    Args:
        scale: float32, one element a row, contiguous; a trailing dimension of 1 is welcome.
        whole_length: K of the unsharded weight. Where it is larger than the codes' K (row-parallel layers), a
            row's scale comes from the whole row, so that the bytes equal slices of the unsharded ones.
    """

    def __init__(
        self,
        name: str,
        codes: torch.Tensor,
        scale: torch.Tensor,
        whole_length: int,
        parts: Sequence[tuple[str, int]] = (),
    ):
        super().__init__(name, codes, parts)
        self.scale = scale
        self.whole_length = whole_length
        self.codes = codes.numel()

    def tensors(self) -> list[torch.Tensor]:
        return [self.data, self.scale]

    def _store(self, view: torch.Tensor, source: torch.Tensor, whole: torch.Tensor | None) -> int:
        if not source.is_floating_point():
            raise RefitError(f"{self.name}: got {source.dtype}; send BF16 weights, the engine quantizes them itself")
        if source.shape[-1] == self.whole_length:
            whole = None
        elif whole is None or whole.shape[-1] != self.whole_length:
            raise RefitError(
                f"{self.name}: a slice of {source.shape[-1]} of {self.whole_length} input channels came without "
                "the rest of its rows, which its scale needs; send whole tensors"
            )
        quantize_into = kernels_for(view.device).quantize_into
        nonfinite = 0
        for part in _matrices(source, view, self.rows(view, self.scale), whole):
            bad, changed = quantize_into(*part)
            nonfinite += bad
            self.changed += changed
        return nonfinite


def _matrices(source: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, whole: torch.Tensor | None) -> Iterator:
    """Split stacks of matrices into (N, K) pieces; one row becomes a matrix of one row."""
    if source.dim() == 1:
        yield source[None], codes[None], scale[None], None if whole is None else whole[None]
    elif source.dim() == 2:
        yield source, codes, scale, whole
    else:
        for i in range(source.shape[0]):
            yield from _matrices(source[i], codes[i], scale[i], None if whole is None else whole[i])
