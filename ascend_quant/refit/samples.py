"""Samples of every resident tensor's bytes, for a fast check of an engine's weights (`glance`).

Each tensor is sampled in PIECES pieces of PIECE bytes, evenly spaced: all of a norm or of a layer's scales, and about
one piece per sampled row of a matrix. This is 2.4 MB for a model of 0.5B parameters.
"""

from collections.abc import Iterator, Sequence

import torch

from ascend_quant.kernels.storage import WeightLayout
from ascend_quant.refit.resident import ResidentWeight

PIECES, PIECE = 4, 4096


class Samples:
    """Views of the sampled bytes, created once, since residents never move."""

    def __init__(self, residents: Sequence[ResidentWeight]):
        self._pieces = [
            (resident.name, piece)
            for resident in residents
            for tensor, _ in resident.tensors()
            for piece in _pieces(tensor)
        ]

    def bytes(self) -> torch.Tensor:
        """Copy all sampled bytes, on their device."""
        return torch.cat([piece for _, piece in self._pieces])

    def differing(self, noted: torch.Tensor) -> list[str]:
        """Return the names of residents whose bytes differ from an earlier copy."""
        parts = torch.split(noted, [len(piece) for _, piece in self._pieces])
        each = zip(self._pieces, parts, strict=True)
        return list(dict.fromkeys(name for (name, piece), part in each if not torch.equal(piece, part)))


def _pieces(tensor: torch.Tensor | WeightLayout) -> Iterator[torch.Tensor]:
    """Yield the sampled bytes of a tensor; none if its layout has no view of its memory."""
    if not isinstance(tensor, torch.Tensor):
        if tensor.sampled() is None:
            return
        tensor = tensor.tensor
    if tensor.numel():
        flat = tensor.detach().view(-1).view(torch.uint8)
        step = max(PIECE, -(-len(flat) // PIECES))
        yield from (flat[start : start + PIECE] for start in range(0, len(flat), step))
