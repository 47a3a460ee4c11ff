"""What a refit brings up to date or checks beside the weights' own rows: a tied head, smoothing, a KV cache's scales.

A refit calls each of its checks in this order:

    begin      it opens
    take       each group of tensors, before any of them is written; a check keeps what is its own, or changes them
    transform  all rows are written: multiply resident tensors
    derive     compute what the engine keeps beside its weights
    check      all tensors have come: raise RefitError if the refit may not stand
    settle     it has succeeded

Between refits the serving state asks whether what a check has written is still there. Every method may be left as it
is here, where it does nothing.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch

from ascend_quant.kernels.writes import RowWrite
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.receipt import Report
from ascend_quant.refit.received import Received
from ascend_quant.refit.resident import ResidentWeight
from ascend_quant.transfer.validate import NamedTensor


class Check:
    """A check that does nothing.

    Attributes:
        name: of its part in receipts.
        needs_look: whether what it has written is to be read back before a request is served.
        cache_since: the number of the refit since which cached keys and values are to be read as now; 0: always.
    """

    name = ""
    needs_look = False
    cache_since = 0

    @property
    def report(self) -> Report | None:
        """Its part of the receipt of the last refit that closed; None where there is nothing to report."""
        return None

    def begin(self) -> None:
        """A refit begins."""

    def extra_writes(self, resident: ResidentWeight) -> Iterable[tuple[RowWrite, torch.dtype]]:
        """Yield examples of writes that only this check leads to, whose kernels are to be compiled ahead."""
        return ()

    def take(self, weights: Iterable[NamedTensor], received: Received) -> Iterable[NamedTensor]:
        """Return the tensors that are to be written, a list of a list; those that are kept are counted."""
        return weights

    def transform(self) -> None:
        """Multiply resident tensors, all of which have been written; nothing waits."""

    def derive(self) -> None:
        """Bring up to date what the engine computes from its weights."""

    def check(self, entries: Mapping[str, Entry]) -> None:
        """End the refit; raise RefitError if it may not stand, all residents written and these tensors come."""

    def settle(self, number: int, digest: int) -> int:
        """Return the digest of all residents once refit `number` has succeeded, given that of what was written."""
        return digest

    def look(self) -> None:
        """Read back what was written, if nobody has since; waits for the device."""

    def why_not_servable(self) -> str | None:
        """Return why no request may be served with what was written; None if nothing is known against it."""
        return None

    def cache_woke(self) -> None:
        """The KV cache woke up, with which the engine resets buffers."""


class Derived(Check):
    """What an engine derives from its weights and keeps beside them."""

    def __init__(self, refreshes: Sequence[Callable[[], None]]):
        self._refreshes = refreshes

    def derive(self) -> None:
        for refresh in self._refreshes:
            refresh()
