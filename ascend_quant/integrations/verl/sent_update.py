"""How much of the trainer's update the codes take that it sends: the figures of refit/update.py.

An engine cannot make them of codes. One rank of the trainer watches rows of its own shards, so nothing is gathered.
Nearest codes are made again from these; codes of another rounding are looked at where they leave, in the whole tensor,
which begins with the first rank's shard.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch

from ascend_quant.integrations.verl.gathering import local_of
from ascend_quant.refit.coding import codes_dtype, parted
from ascend_quant.refit.sent import NamedTensor
from ascend_quant.refit.update import Kept, Rows, Update
from ascend_quant.refit.watched_rows import chosen, some_rows
from ascend_quant.schemes import Scheme


class SentUpdate:
    """Of the first rank.

    Args:
        scheme: of the codes that leave.
        of_float32: whether they are rounded otherwise than to the nearest of the BF16 weights.
    """

    def __init__(self, scheme: Scheme, of_float32: bool = False):
        self._scheme, self._of_float32 = scheme, of_float32
        self._rows: Rows = {}
        self._lengths: dict[str, int] = {}  # rows, or matrices of a stack, that this rank has
        self._first: Kept | None = None
        self._last: Kept | None = None
        self.update: Update | None = None

    def look(self, shards: Mapping[str, torch.Tensor], coded: Collection[str]) -> None:
        """A sync begins with these parameters, whole or what this rank has of them.

        Args:
            coded: the names of those that leave as codes, alike in every sync.
        """
        self._begin()
        for name in chosen(coded):
            self._look_at(name, shards[name])

    def passing(self, weights: Iterable[NamedTensor], coded: Collection[str]) -> Iterator[NamedTensor]:
        """The weights of a sync as they are, looked at on their way."""
        watched = chosen(coded)
        self._begin()
        for name, tensor in weights:
            if name in watched:
                self._look_at(name, tensor)
            yield name, tensor

    def leaving(self, groups: Iterable[Sequence[NamedTensor]]) -> Iterator[Sequence[NamedTensor]]:
        """What leaves of them, whole, under either of its names; the sync is complete at its end."""
        sent: Rows = {}
        for group in groups:
            for name, tensor in group if self._of_float32 else ():
                own, _ = parted(name)
                if own in self._rows and tensor.dtype == codes_dtype(self._scheme):
                    sent[own] = some_rows(own, tensor[: self._lengths[own]]).clone()
            yield group
        self._take(sent if self._of_float32 else None)

    def _begin(self) -> None:
        self._rows, self._lengths = {}, {}

    def _look_at(self, name: str, tensor: torch.Tensor) -> None:
        local = local_of(tensor)
        if local.numel():
            dtype = torch.float32 if self._of_float32 else torch.bfloat16
            self._rows[name], self._lengths[name] = some_rows(name, local).to(dtype, copy=True), len(local)

    def _take(self, sent: Rows | None) -> None:
        last, now = self._last, Kept(self._scheme, self._rows, sent)
        if self._first is None or last is None:
            self._first = now
        else:
            self.update = Update(self._first, last, now)
        self._last = now

    def as_metrics(self) -> dict[str, float]:
        """`refit/update/*` and `refit/since_start/*`; nothing before the second sync with codes."""
        return {} if self.update is None else {f"refit/{name}": value for name, value in self.update.figures.items()}
