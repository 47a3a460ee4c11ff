"""Weights that wait on the host between passes (verl's `param_offload`): after an update they stay for the sync.

At an update's end verl moves the float32 shards to the host, and a sync to engines on the same devices brings them back
to round them: a 7B's 30 GB, over all ranks. Here they go there once, when verl puts them away at that sync's end. What
leaves is made of the weights themselves, so whatever has written to them in between is seen. Optimizer states, twice
their bytes, go at the update's end as ever, and FSDP2's gradients are freed by then.
"""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Offloaded:
    """Decides when one trainer's weights are offloaded to the host.

    Args:
        stays: whether they are to stay at an update's end: asked then.
    """

    def __init__(self, stays: Callable[[], bool]):
        self._stays, self._updates = stays, False

    @contextmanager
    def updating(self) -> Generator[None]:
        """Mark an update, at whose end a weight sync is next."""
        before, self._updates = self._updates, True
        try:
            yield
        finally:
            self._updates = before

    def before(self, move: Callable) -> Callable:
        """Wrap verl's `engine.to`: at an update's end it leaves the weights on the device."""

        @functools.wraps(move)
        def to(device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            stays = device == "cpu" and self._updates and self._stays()
            moves = model and not stays
            move(device=device, model=moves, optimizer=optimizer, grad=grad and moves)

        return to
