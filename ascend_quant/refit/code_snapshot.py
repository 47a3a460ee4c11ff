"""A host copy of sampled quantized rows during sleep, used only for the receipt's `changed`.

A refit compares the values that it writes with those that it overwrites, in every 64th row (`counters.SAMPLE`). Sleep
level 2 discards the buffers' bytes, so these rows are copied to the host before it and restored after it, and the
next refit counts the same changes as without the sleep. They are never served: the engine refuses until that refit.

While the engine sleeps, this uses pinned host memory of 1/64 of the codes' bytes (int4 on CUDA: 1/32), rounded up to a
power of two: 128 MiB for 7B parameters in int8. torch keeps it for the next sleep. These bytes are copied once in each
direction; only the first copy is waited for.
"""

import logging
from collections.abc import Iterator, Sequence

import torch

from ascend_quant.refit.resident import ResidentWeight

logger = logging.getLogger(__name__)


PIECE = 16 << 20  # bytes per copy, and of the device buffer


class CodeSnapshot:
    """Host copies of the residents' sampled rows, made in the constructor, which waits for the device.

    Raises:
        RuntimeError: the host does not have enough memory (raised by torch).
    """

    def __init__(self, residents: Sequence[ResidentWeight]):
        rows = [sampled for resident in residents if (sampled := resident.sampled_codes()) is not None]
        self._device = rows[0].device if rows else torch.device("cpu")
        accelerated = self._device.type != "cpu"
        memory = torch.empty(sum(part.nbytes for part in rows), dtype=torch.uint8, pin_memory=accelerated)
        pieces = [*_pieces(rows)]
        sizes = [sum(part.nbytes for part in piece) for piece in pieces]
        self._kept = [*zip(torch.split(memory, sizes), pieces, strict=True)]
        for held, piece in self._kept:
            there = torch.empty_like(held, device=self._device)
            for place, part in _places(there, piece):
                place.copy_(part)
            held.copy_(there, non_blocking=True)
        if accelerated:
            torch.get_device_module(self._device).synchronize()

    @classmethod
    def of(cls, residents: Sequence[ResidentWeight]) -> "CodeSnapshot | None":
        """Return the copies; None if they cannot be made, since a metric must not end a run."""
        if any(resident.codes and resident.sampled_codes() is None for resident in residents):
            return None
        try:
            return cls(residents)
        except RuntimeError as error:
            logger.warning(
                "refit/changed will be missing after this sleep: the quantized weights could not be saved (%s)", error
            )
            return None

    def put_back(self) -> bool:
        """Restore the rows, asynchronously; return whether that was possible."""
        try:
            for held, piece in self._kept:
                there = held.to(self._device, non_blocking=True)
                for place, part in _places(there, piece):
                    part.copy_(place)
        except RuntimeError as error:
            logger.warning(
                "refit/changed is missing after this sleep: the quantized weights could not be restored (%s)", error
            )
            return False
        return True


def _pieces(rows: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Group tensors into copies of PIECE bytes, since a copy into rows with gaps costs 0.1 ms per tensor."""
    piece: list[torch.Tensor] = []
    size = 0
    for part in rows:
        if piece and size + part.nbytes > PIECE:
            yield piece
            piece, size = [], 0
        piece.append(part)
        size += part.nbytes
    if piece:
        yield piece


def _places(memory: torch.Tensor, piece: Sequence[torch.Tensor]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor with its part of a byte buffer."""
    places = torch.split(memory, [part.nbytes for part in piece])
    return ((place.view(part.dtype).view(part.shape), part) for place, part in zip(places, piece, strict=True))
