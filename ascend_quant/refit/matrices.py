"""Splitting of shards into matrices whose rows are evenly spaced in the source and in the engine's buffer."""

from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import NamedTuple

import torch


class Piece(NamedTuple):
    """A matrix of a shard, with destinations of values and scales, and optional whole rows and static scales."""

    source: torch.Tensor
    target: torch.Tensor
    scale: torch.Tensor | None
    whole: torch.Tensor | None
    static_scale: torch.Tensor | None

    def each(self, part: Callable[[torch.Tensor], torch.Tensor]) -> "Piece":
        """Return the piece with this slice applied to each tensor."""
        scale, whole, static_scale = (None if one is None else part(one) for one in self[2:])
        return Piece(part(self.source), part(self.target), scale, whole, static_scale)


def matrices_of(piece: Piece, length: int) -> Iterator[Piece]:
    """Split stacks of matrices into as few (N, K) pieces as their strides allow; a vector is a matrix of one row."""
    target = piece.target
    if target.dim() == 1:
        yield piece.each(itemgetter(None))
    elif target.dim() == 2 and (target.shape[0] == 1 or target.stride(0) == length):
        yield piece
    elif target.dim() == 3 and all(one is None or _flattens(one) for one in (piece.source, target, piece.whole)):
        yield from matrices_of(piece.each(lambda stack: stack.flatten(0, 1)), length)
    else:
        for i in range(target.shape[0]):
            yield from matrices_of(piece.each(itemgetter(i)), length)


def _flattens(tensor: torch.Tensor) -> bool:
    """Return whether the first two dimensions can be flattened to one without a copy."""
    return tensor.stride(0) == tensor.shape[1] * tensor.stride(1)


def offset_in(view: torch.Tensor, tensor: torch.Tensor) -> int:
    """Return the offset of a view in a tensor, in elements."""
    return int(view.storage_offset()) - int(tensor.storage_offset())  # symbolic only while a graph is traced
