"""The sampled codes in host memory while a sleep discards those in the buffers, for the receipt's `changed` alone.

A refit compares what it writes with the codes that it overwrites, in every 64th row (`moves.SAMPLE`). Sleep level 2
forgets the buffers' bytes; so these rows are copied to the host before it and put back after it, and the next refit
finds what it would have found without the sleep. Nothing is served from them: until that refit the engine refuses.

Host memory while the engine sleeps: 1/64 of the codes' bytes (int4 on CUDA: 1/32), rounded up to a power of two, so
128 MiB for 7B parameters in int8, pinned; torch keeps it for the next sleep. Device time: a copy of so many bytes each
way, the first waited for, the second not.
"""

import logging
from collections.abc import Sequence

import torch

from ascend_quant.refit.resident import ResidentWeight

logger = logging.getLogger(__name__)


class FormerCodes:
    """Copies of the residents' sampled rows, made in the constructor, which waits for the device.

    Raises:
        RuntimeError: torch's, where the host has not so much memory.
    """

    def __init__(self, residents: Sequence[ResidentWeight]):
        rows = [sampled for resident in residents if (sampled := resident.sampled_codes()) is not None]
        accelerated = any(part.device.type != "cpu" for part in rows)
        memory = torch.empty(sum(part.nbytes for part in rows), dtype=torch.uint8, pin_memory=accelerated)
        sizes = [part.nbytes for part in rows]
        self._kept = [
            (held.view(part.dtype).view(part.shape), part)
            for held, part in zip(torch.split(memory, sizes), rows, strict=True)
        ]
        for held, part in self._kept:
            held.copy_(part, non_blocking=True)
        if accelerated:
            torch.get_device_module(rows[0].device).synchronize()

    @classmethod
    def of(cls, residents: Sequence[ResidentWeight]) -> "FormerCodes | None":
        """The copies; None where they cannot be had: a metric is no reason to end a run."""
        if any(resident.codes and resident.sampled_codes() is None for resident in residents):
            return None
        try:
            return cls(residents)
        except RuntimeError as error:
            logger.warning("refit/changed will be unknown after this sleep: the codes could not be kept (%s)", error)
            return None

    def put_back(self) -> bool:
        """Write the rows where they were, asynchronously; whether that was possible."""
        try:
            for held, part in self._kept:
                part.copy_(held, non_blocking=True)
        except RuntimeError as error:
            logger.warning("refit/changed is unknown after this sleep: the codes could not be put back (%s)", error)
            return False
        return True
