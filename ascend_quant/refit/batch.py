"""The writes of one refit: queued, passed to the kernels in batches, and checked for NaN and Inf on the device.

A source tensor must not change until its writes are flushed; the caller decides when to flush.
"""

from collections.abc import Sequence

import numpy as np
import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.events import KernelClock
from ascend_quant.kernels.writes import Job, RowWrite, WriteBatch
from ascend_quant.transfer.errors import RefitError
from ascend_quant.transfer.prequantized import parted


class Batch:
    """Queued writes, and the counters of those that are complete.

    Args:
        device: device of the resident weights.
        sparing: whether kernels use little work space, since the engine may reserve the peak memory of the first load.

    Attributes:
        is_flushing: whether kernels are writing, so that copies into resident weights are not intercepted.
    """

    def __init__(self, device: torch.device, sparing: bool = False):
        self.kernels = kernels_for(device)
        self.counters = self.kernels.Counters(device, sparing)
        self.clock = KernelClock(device)
        self.is_flushing = False
        self._jobs: list[Job] = []
        self._single: list[tuple[RowWrite, torch.Tensor, int]] = []
        self._sources: list[tuple[str, int]] = []

    def new_sources(self, sources: Sequence[tuple[str, int]]) -> int:
        """Register tensors (name, elements) whose NaN and Inf are counted; return the slot of the first."""
        self._sources += sources
        return self.counters.new_slots(len(sources))

    def add(
        self,
        writes: WriteBatch,
        sources: Sequence[tuple[str, int]],
        tensors: Sequence[torch.Tensor],
        addresses: Sequence[int],
    ) -> None:
        """Queue writes of tensors, which are registered as in `new_sources`."""
        first = self.new_sources(sources)
        self._jobs.append(Job(writes, tensors, addresses, np.arange(first, first + len(tensors))))

    def add_single(self, write: RowWrite, source: torch.Tensor, number: int) -> None:
        """Queue a write."""
        self._single.append((write, source, number))

    @torch.no_grad()
    def flush(self) -> None:
        """Start all queued writes; their sources may be overwritten after the device's stream has passed this point.

        If reading a counter needs no synchronization, the written values are checked immediately.
        """
        jobs, self._jobs = self._jobs, []
        if self._single:
            jobs.append(Job.of_each(*zip(*self._single, strict=True)))
            self._single = []
        if not jobs:
            return
        self.is_flushing = True
        with self.clock.running():
            self.kernels.write(jobs, self.counters)
        if self.kernels.READS_ARE_FREE:
            self.finish()
        self.is_flushing = False

    def finish(self) -> tuple[int, int, int]:
        """Wait for the writes.

        Returns:
            The number of sampled codes that changed, the number of clamped codes, and the digest of the written bytes.

        Raises:
            RefitError: tensors contain NaN or Inf; the message names them.
        """
        bad: dict[int, int]
        changed, digest, bad = self.counters.read()
        if bad:
            slot, count = next(iter(bad.items()))
            name, elements = self._sources[slot]
            more = f" (and {len(bad) - 1} more tensors contain some)" if len(bad) > 1 else ""
            if self.counters.NONFINITE == "rows" or parted(name)[1]:
                raise RefitError(f"{name}: {count} of its rows contain NaN or Inf{more}")
            raise RefitError(f"{name}: {count} of {elements} elements are NaN or Inf{more}")
        return changed, self.counters.clamped, digest
