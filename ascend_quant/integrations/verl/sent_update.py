"""How much of the trainer's update the codes take that it sends: the figures of refit/update.py.

An engine cannot make them of codes. One rank of the trainer watches rows of its own shards, so nothing is gathered.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

import torch
from torch.distributed.tensor import DTensor

from ascend_quant.refit.sent import NamedTensor
from ascend_quant.refit.update import Kept, Rows, Update
from ascend_quant.refit.watched_rows import chosen, some_rows
from ascend_quant.schemes import Scheme


class SentUpdate:
    """Of one rank.

    Args:
        scheme: of the codes that leave.
    """

    def __init__(self, scheme: Scheme):
        self._scheme = scheme
        self._first: Kept | None = None
        self._last: Kept | None = None
        self.update: Update | None = None

    def look(self, shards: Mapping[str, torch.Tensor], coded: Collection[str]) -> None:
        """A sync begins with these parameters, whole or what this rank has of them.

        Args:
            coded: the names of those that leave as codes, alike in every sync.
        """
        self._take({name: _rows_of(name, shards[name]) for name in chosen(coded)})

    def passing(self, weights: Iterable[NamedTensor], coded: Collection[str]) -> Iterator[NamedTensor]:
        """The weights of a sync as they are, looked at on their way."""
        watched, rows = chosen(coded), Rows()
        for name, tensor in weights:
            if name in watched:
                rows[name] = _rows_of(name, tensor)
            yield name, tensor
        self._take(rows)

    def _take(self, rows: Rows) -> None:
        last, now = self._last, Kept(self._scheme, {name: one for name, one in rows.items() if one.numel()})
        if self._first is None or last is None:
            self._first = now
        else:
            self.update = Update(self._first, last, now)
        self._last = now

    def as_metrics(self) -> dict[str, float]:
        """`refit/update/*` and `refit/since_start/*`; nothing before the second sync with codes."""
        return {} if self.update is None else {f"refit/{name}": value for name, value in self.update.figures.items()}


def _rows_of(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """BF16 (R, K), memory of its own: what an engine would get of some rows."""
    local = (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()
    if not local.numel():
        return local.new_zeros(0, tensor.shape[-1], dtype=torch.bfloat16)
    return some_rows(name, local).to(torch.bfloat16, copy=True)
