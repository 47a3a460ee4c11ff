"""What leaves of shards that wait on the host (verl's `param_offload`), made before they go there.

At an update's end verl moves the float32 shards to the host, and a sync brings them back to round them: a 7B's 30 GB,
over all ranks. Here each rank makes its share at the update's end, codes or BF16, and keeps it on the device until the
sync that follows takes it: a quarter or half of the shards' bytes, less than the gradients that have just been freed.

A share is of the weights that it was made of. It is dropped when the model moves again, and not used where a tensor has
been written since, or what leaves is another.
"""

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from ascend_quant.integrations.verl.gathering import Share
from ascend_quant.integrations.verl.leaving import Leaving

Made = tuple[list[Share], Leaving]  # and how they leave


class Offloaded:
    """The shares of one trainer's next sync.

    Args:
        engine: verl's, which trains.
        make: what this rank has of its weights, as they leave; None where nothing is to be made ahead.
    """

    def __init__(self, engine: Any, make: Callable[[], Made | None]):
        self._engine, self._make, self._updates = engine, make, False
        self.drop()

    def drop(self) -> None:
        """What was made is of weights that are no more."""
        self._shares: deque[Share] = deque()
        self._leaving: Leaving | None = None
        self._waiting: list[_Written] = []

    @property
    def bytes(self) -> int:
        """Of what was made."""
        return sum(share.bytes for share in self._shares)

    @contextmanager
    def updating(self) -> Generator[None]:
        """An update: when its weights move to the host, a sync is next."""
        before, self._updates = self._updates, True
        try:
            yield
        finally:
            self._updates = before

    def before(self, move: Callable) -> Callable:
        """verl's `engine.to`, that makes shares when an update's weights move to the host."""

        @functools.wraps(move)
        def to(device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            if model:
                self.drop()
            made = self._make() if model and device == "cpu" and self._updates else None
            move(device=device, model=model, optimizer=optimizer, grad=grad)
            if made is not None:
                shares, self._leaving = made
                self._shares, self._waiting = deque(shares), _written(self._engine.module)

        return to

    def take(self, leaving: Leaving) -> Iterator[Share] | None:
        """What was made, once, and none of it kept; None where the weights or how they leave are others by now."""
        found, waiting, fresh = self._shares, self._waiting, leaving == self._leaving
        self.drop()
        return _emptied(found) if found and fresh and waiting == _written(self._engine.module) else None


@dataclass(frozen=True)
class _Written:
    """A tensor of the model, and how often it and what this rank has of it have been written.

    Attributes:
        storage: keeps the memory from being another tensor's.
    """

    address: int
    versions: tuple[int, int]
    storage: torch.UntypedStorage = field(compare=False)


def _written(module: torch.nn.Module) -> list[_Written]:
    found = []
    for tensor in module.state_dict(keep_vars=True).values():
        local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor  # to_local() counts anew
        found.append(_Written(local.data_ptr(), (tensor._version, local._version), local.untyped_storage()))
    return found


def _emptied(found: deque[Share]) -> Iterator[Share]:
    while found:
        yield found.popleft()
