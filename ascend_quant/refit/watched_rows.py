"""Which rows of the trainer's weights are watched, to tell how much of an update their codes take (update.py).

They are the same in every refit and on every rank, since they are chosen by name: ROWS neighbouring ones of the NAMES
tensors of each kind whose names have the lowest checksums. Kept, in host memory: those of the first refit, of the
last one and of this one, as they were sent and with what became of them, for 7B 12 MB each.
"""

from bisect import insort
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from zlib import crc32

import torch

from ascend_quant.dtypes import FLOATS
from ascend_quant.refit.coding import parted
from ascend_quant.refit.plan import Entry
from ascend_quant.refit.sent import NamedTensor
from ascend_quant.refit.update import Kept, Rows, Update, kind_of
from ascend_quant.schemes import Scheme

NAMES, ROWS = 8, 4  # tensors of a kind, and rows of each
WITHIN_ROWS = ("row", "group")  # what shares a scale, where rows can be quantized without the others


class WatchedRows:
    """Those of an engine's worker.

    Args:
        scheme: of its quantized layers; one whose rows have scales of their own.
    """

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        self._first: Kept | None = None
        self._last: Kept | None = None
        self._names: set[str] = set()
        self.begin()

    def begin(self) -> None:
        """A refit begins; what an unfinished one has brought is forgotten."""
        self._coming: Rows = {}
        self._chosen: dict[str, list[tuple[int, str]]] = {}
        self._as_codes = False

    def take(self, weights: Iterable[NamedTensor]) -> None:
        """Copy the rows of these tensors, which may be overwritten afterwards; nothing waits for the device."""
        for name, tensor in weights:
            self._as_codes |= parted(name)[1]
            if self._is_wanted(name, tensor):
                self._coming[name] = some_rows(name, tensor).clone()

    def end(self, entries: Mapping[str, Entry]) -> Update | None:
        """The refit is complete: its rows, beside earlier ones'; None of the first, and where weights came as codes.

        Under other names than in the first refit (a checkpoint's single experts, then stacks of them) all begins anew.
        """
        rows, self._coming = self._coming, {}
        if not self._names <= rows.keys() and not self._as_codes:
            self._first, self._names = None, set()
            return None
        if self._first is None:
            quantized = {kind_of(name) for name in rows if _is_quantized(entries.get(name))}
            alike = {name for name in rows if kind_of(name) in quantized}
            self._names = {name for name in alike if not _keeps_its_dtype(entries.get(name))}
            self._first = self._last = Kept(self._scheme, {name: rows[name] for name in self._names})
            return None
        kept = Kept(self._scheme, rows) if self._names <= rows.keys() else None  # codes do not tell what they are of
        last, self._last = self._last, kept
        return None if last is None or kept is None else Update(self._first, last, kept)

    def _is_wanted(self, name: str, tensor: torch.Tensor) -> bool:
        """In the first refit: whether the name is, so far, one of its kind's NAMES with the lowest checksums."""
        if self._first is not None:
            return name in self._names
        if tensor.dim() < 2 or not tensor.numel() or tensor.dtype not in FLOATS:
            return False
        chosen = self._chosen.setdefault(kind_of(name), [])
        insort(chosen, (crc32(name.encode()), name))
        for _, dropped in chosen[NAMES:]:
            self._coming.pop(dropped, None)
        del chosen[NAMES:]
        return any(name == kept for _, kept in chosen)


def watched_rows_of(scheme: Scheme) -> WatchedRows | None:
    """None where single rows do not tell what their codes are."""
    return WatchedRows(scheme) if scheme.shares in WITHIN_ROWS else None


def chosen(names: Iterable[str]) -> set[str]:
    """Of each kind the NAMES names with the lowest checksums."""
    kinds: dict[str, list[str]] = {}
    for name in names:
        kinds.setdefault(kind_of(name), []).append(name)
    return {name for alike in kinds.values() for name in nsmallest(NAMES, alike, key=lambda one: crc32(one.encode()))}


def some_rows(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Neighbouring rows; of a stack of matrices, of one of them."""
    number = crc32(name.encode())
    while tensor.dim() > 2:
        tensor = tensor[number % len(tensor)]
    first = number % max(len(tensor) - ROWS + 1, 1)
    return tensor[first : first + ROWS]


def _is_quantized(entry: Entry | None) -> bool:
    return entry is not None and any(resident.codes for resident, _ in entry.moves)


def _keeps_its_dtype(entry: Entry | None) -> bool:
    """Whether no rank quantizes the tensor: a tower's, or one that is left out; another rank's expert is not known."""
    return entry is not None and not _is_quantized(entry) and (entry.skipped or bool(entry.moves))
