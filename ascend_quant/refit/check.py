"""Checks: parts of a refit besides the rows of weights, such as a tied head, smoothing, or KV cache scales.

A refit calls the methods of each check in this order:

    begin      when it opens
    take       for each group of tensors, before they are written; a check may keep or change them
    transform  when all rows are written: scale resident tensors
    derive     then: compute what the engine derives from its weights
    check      when all tensors have arrived: raise RefitError if the refit is invalid
    settle     after it has succeeded

Between refits the serving state asks each check whether its buffers are unchanged. Methods do nothing by default.
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
        name: key of the check's report in receipts.
        needs_look: whether its buffers must be read back before a request is served.
        cache_since: the number of the last refit that changed how cached keys and values are read; 0 for none.
    """

    name = ""
    needs_look = False
    cache_since = 0

    @property
    def report(self) -> Report | None:
        """Return its report in the receipt of the last closed refit; None if there is nothing to report."""
        return None

    def begin(self) -> None:
        """Begin a refit."""

    def extra_writes(self, resident: ResidentWeight) -> Iterable[tuple[RowWrite, torch.dtype]]:
        """Yield examples of writes that only this check causes, so that their kernels are compiled in advance."""
        return ()

    def take(self, weights: Iterable[NamedTensor], received: Received) -> Iterable[NamedTensor]:
        """Return the tensors still to be written, as a list for a list; the check stores and counts the others.

        Args:
            weights: tensors that have passed `check_sent`.
        """
        return weights

    def transform(self) -> None:
        """Scale resident tensors after all of them have been written, asynchronously."""

    def derive(self) -> None:
        """Update the buffers that the engine derives from its weights."""

    def check(self, entries: Mapping[str, Entry]) -> None:
        """End the refit after all residents have been written; raise RefitError if it is not valid."""

    def settle(self, number: int, digest: int) -> int:
        """Return the digest of all residents after refit `number`, given the digest of the written bytes."""
        return digest

    def look(self) -> None:
        """Read back the buffers, unless that was done since the last write; waits for the device."""

    def why_not_servable(self) -> str | None:
        """Return why no request may be served with these buffers; None if there is no known reason."""
        return None

    def cache_woke(self) -> None:
        """Handle the wake-up of the KV cache, at which the engine resets buffers."""


class Derived(Check):
    """Buffers that an engine derives from its weights."""

    def __init__(self, refreshes: Sequence[Callable[[], None]]):
        self._refreshes = refreshes

    def derive(self) -> None:
        for refresh in self._refreshes:
            refresh()
