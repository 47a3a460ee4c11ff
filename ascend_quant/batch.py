"""The writes of one refit: collected, handed to the kernels in batches, counted on the device.

A source tensor must stay as it is until its writes are flushed; who owns it decides when that is.
"""

import torch

from ascend_quant.kernels import kernels_for
from ascend_quant.kernels.moves import Counters, Job, Move


class RefitError(RuntimeError):
    """A refit that cannot be trusted; the message names the parameter and what to do."""


EARLY = 4 << 30  # bytes that wait before a device is given work although more is to come


class Batch:
    """Jobs that wait, and the counters of those that are done.

    Args:
        device: where the resident weights are.
    """

    def __init__(self, device: torch.device):
        self.kernels = kernels_for(device)
        self.counters = Counters(device)
        self._jobs: list[Job] = []
        self._bytes = 0
        self._sources: list[tuple[str, int]] = []

    def new_source(self, name: str, elements: int) -> int:
        """A number for the tensor called `name`, under which its bad elements are counted."""
        self._sources.append((name, elements))
        return self.counters.new_slot()

    def add(self, move: Move, source: torch.Tensor, slot: int) -> None:
        self._jobs.append(Job(move, source, slot))
        self._bytes += source.nbytes

    @property
    def is_much(self) -> bool:
        """Whether so much waits that the device should begin."""
        return self._bytes > EARLY

    def flush(self) -> None:
        """Start all waiting writes; where reading a counter costs nothing, check them at once."""
        if self._jobs:
            jobs, self._jobs, self._bytes = self._jobs, [], 0
            self.kernels.write(jobs, self.counters)
            if self.kernels.READS_ARE_FREE:
                self.finish()

    def finish(self) -> tuple[int, int]:
        """Wait for the writes; returns how many of the sampled codes changed, and the digest of what was written.

        Raises:
            RefitError: naming the tensors with NaN or Inf.
        """
        changed, digest, bad = self.counters.read()
        if bad:
            slot, count = next(iter(bad.items()))
            name, elements = self._sources[slot]
            more = f" (and {len(bad) - 1} more tensors have such)" if len(bad) > 1 else ""
            raise RefitError(f"{name}: {count} of {elements} elements are NaN or Inf{more}")
        return changed, digest
