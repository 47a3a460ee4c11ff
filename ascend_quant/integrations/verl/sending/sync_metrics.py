"""Metrics of a weight sync on the trainer's side: sync time and bytes, logged with the engine's receipts."""

import time
from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

from ascend_quant.transfer.prequantized import parted
from ascend_quant.transfer.validate import NamedTensor

Metrics = dict[str, float]
T = TypeVar("T")


class SyncMetrics:
    """Bytes and seconds of the last weight sync in this process.

    Attributes:
        gathering: host seconds spent gathering: launching collectives, and waiting for them where the host waits.
        bytes: size of the weights as they were sent.
        coded: number of pre-quantized tensors.
        kept: bytes that stayed in the trainer's allocator, see sync_memory.py.
    """

    def __init__(self) -> None:
        self.kept = 0
        self.begin()

    def begin(self) -> None:
        """Begin a sync; the allocator's reserved memory is recorded before anything is sent."""
        self.gathering, self.bytes, self.coded = 0.0, 0, 0

    def time_gathering(self, make: Callable[[], T]) -> T:
        """Return the result of a call, and add its duration to the gathering time."""
        start = time.perf_counter()
        made = make()
        self.gathering += time.perf_counter() - start
        return made

    def count_bytes(self, tensor: torch.Tensor) -> None:
        """Count the bytes of a tensor that is sent."""
        self.bytes += tensor.nbytes

    def count_codes(self, group: Sequence[NamedTensor]) -> None:
        """Count the pre-quantized tensors of a group."""
        self.coded += sum(parted(name)[1] for name, _ in group)

    def as_metrics(self) -> Metrics:
        """Return the metrics with their logged names."""
        return {
            "refit/gather_ms": 1e3 * self.gathering,
            "refit/bytes_sent": self.bytes,
            "refit/prequantized": self.coded,
            "refit/bytes_kept": self.kept,
        }


def slowest_of(ranks: Sequence[Metrics]) -> Metrics:
    """Return the maximum of each metric over the ranks, since all ranks wait for the slowest."""
    return {name: max(metrics[name] for metrics in ranks) for name in ranks[0]}
