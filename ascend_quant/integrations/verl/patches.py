"""Weights that travel between devices as what has changed in them: refit/delta.py at both ends of verl's engines.

Before each sync verl asks every end's checkpoint engine to get ready. After that its driver asks the receivers which
sync they have, and tells the senders, all of them alike: whatever was lost on the way, a replica, a trainer or a sync
that ended in the middle, the next sync is sent whole.
"""

import logging
import secrets
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import ray

from ascend_quant.refit.delta import Receiver, Sender
from ascend_quant.refit.sent import NamedTensor

logger = logging.getLogger(__name__)

HAS, AGAINST = "refit_has", "refit_against"  # what verl's checkpoint engines are asked besides


@cache
def own_id() -> int:
    """Of the senders whose driver this process is."""
    return 1 + secrets.randbits(62)


def asking_for_a_base(original: Callable) -> Callable:
    """For `CheckpointEngineManager.build_process_group`."""
    is_first = True  # sync of the run: that it is whole needs no warning

    def build_process_group(self: Any, rollout: Any) -> None:
        nonlocal is_first
        original(self, rollout)
        found = set(ray.get(rollout.execute_checkpoint_engine([HAS] * rollout.world_size)))
        sender, number = found.pop() if len(found) == 1 else (0, 0)
        against = number if sender == own_id() else 0
        if not against and not is_first:
            logger.warning("the engines have no sync in common: this one is sent whole")
        is_first = False
        size = self.actor_wg.world_size
        ray.get(self.actor_wg.execute_checkpoint_engine([AGAINST] * size, [own_id()] * size, [against] * size))

    return build_process_group


class Patching:
    """The trainer's end.

    Attributes:
        sender: of this rank.
        is_asked: whether the next weights that leave go to engines elsewhere; those on these devices get them plain.
    """

    def __init__(self, sender: Sender):
        self.sender, self.is_asked = sender, False

    def against(self, sender: int, number: int) -> None:
        """The next weights go to engines that all have this sync."""
        self.sender.agree(sender, number)
        self.is_asked = True

    def take_turn(self) -> bool:
        """Whether the weights that leave now are to be patches; once."""
        asked, self.is_asked = self.is_asked, False
        return asked


def receiving(engine: Any, receiver: Receiver) -> None:
    """Let a checkpoint engine hand out what its blobs stand for, and say what it has."""
    receive = engine.receive_weights

    async def receive_weights(*args: Any, **kwargs: Any) -> AsyncIterator[NamedTensor]:
        receiver.begin()
        async for name, tensor in receive(*args, **kwargs):
            for pair in receiver.take(name, tensor):
                yield pair
        receiver.end()

    engine.receive_weights = receive_weights
    setattr(engine, HAS, lambda: receiver.has or (0, 0))
