"""Weights of the next sync prepared before verl offloads the parameters to the host (verl's `param_offload`).

After an update, verl moves the float32 shards to the host, and a sync to colocated engines loads them again to round
them: 30 GB for a 7B model, over all ranks. With this module they stay on the device until verl offloads them at the end
of that sync. The sync reads the weights themselves, so any later write to them is included. Optimizer states, which are
twice as large, are offloaded after the update as before, and FSDP2's gradients are freed by then.
"""

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager


class Offloaded:
    """Decides when one trainer's weights are offloaded to the host.

    Args:
        stays: whether the weights stay on the device; called at the end of each update.
    """

    def __init__(self, stays: Callable[[], bool]):
        self._stays, self._updates = stays, False

    @contextmanager
    def updating(self) -> Generator[None]:
        """Mark an update that is followed by a weight sync."""
        before, self._updates = self._updates, True
        try:
            yield
        finally:
            self._updates = before

    def before(self, move: Callable) -> Callable:
        """Wrap verl's `engine.to`: at the end of an update, it leaves the weights on the device."""

        @functools.wraps(move)
        def to(device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            stays = device == "cpu" and self._updates and self._stays()
            moves = model and not stays
            move(device=device, model=moves, optimizer=optimizer, grad=grad and moves)

        return to
