"""Bytes and seconds of a weight sync on the trainer's side: metrics beside the engine's receipts."""

import time
from collections.abc import Iterable, Iterator, Sequence

from ascend_quant.transfer.prequantized import parted
from ascend_quant.transfer.validate import NamedTensor

Figures = dict[str, float]


class SentFigures:
    """Bytes and seconds of the last weight sync in this process.

    Attributes:
        gathering: seconds of the host in which whole weights were made: gathers started, and waited for as far as the
            host waits.
        bytes: of the weights as they left.
        coded: how many of them left as codes.
        kept: bytes that the trainer's allocator kept, see sync_memory.py.
    """

    def __init__(self) -> None:
        self.gathering, self.bytes, self.coded, self.kept = 0.0, 0, 0, 0

    def counted(self, groups: Iterable[Sequence[NamedTensor]]) -> Iterator[Sequence[NamedTensor]]:
        """Pass the groups of a sync through unchanged; times their gathering and counts what leaves as codes."""
        self.gathering, self.bytes, self.coded = 0.0, 0, 0
        coming = iter(groups)
        while True:
            start = time.perf_counter()
            group = next(coming, None)
            self.gathering += time.perf_counter() - start
            if group is None:
                return
            self.coded += sum(parted(name)[1] for name, _ in group)
            yield group

    def leaving(self, weights: Iterable[NamedTensor]) -> Iterator[NamedTensor]:
        """Pass what leaves through unchanged; counts its bytes."""
        for name, tensor in weights:
            self.bytes += tensor.nbytes
            yield name, tensor

    def as_metrics(self) -> Figures:
        """Return the figures under their names in a step's metrics."""
        return {
            "refit/gather_ms": 1e3 * self.gathering,
            "refit/bytes_sent": self.bytes,
            "refit/sent_as_codes": self.coded,
            "refit/bytes_kept": self.kept,
        }


def of_all(ranks: Sequence[Figures]) -> Figures:
    """Return the maximum of each figure over the ranks: those of the rank for which the others wait."""
    return {name: max(figures[name] for figures in ranks) for name in ranks[0]}
