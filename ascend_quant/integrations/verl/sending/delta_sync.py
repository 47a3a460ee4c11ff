"""The delta sync through verl's checkpoint engines: transfer/delta.py encodes at the trainer and applies at the engine.

Before verl has the checkpoint engines get ready for a sync, its driver asks the receivers for their base (the last
sync that they applied), and tells every rank the same base. If a replica, a trainer or a sync was lost, the next sync
sends all weights.

Deltas are sent in small buckets. verl's checkpoint engines send a bucket once it is full, so with large buckets an
engine would start only after the trainer has compared all weights; and HCCL always sends the whole bucket.
"""

import inspect
import logging
import secrets
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import Any

import ray

from ascend_quant.transfer.delta import Receiver, Sender, Sync
from ascend_quant.transfer.validate import NamedTensor

logger = logging.getLogger(__name__)

HAS, AGAINST = "refit_has", "refit_against"  # names of the additional queries to verl's checkpoint engines
NO_SYNC = Sync(0, 0, 0)
BUCKET = 4 << 20  # bytes of a bucket of deltas: a third of a 7B model's deltas; a 235B model needs about 500 buckets


@cache
def own_id() -> int:
    """Return the random 62-bit id of all weight senders driven by this process; it is created once."""
    return 1 + secrets.randbits(62)


def asking_for_a_base(original: Callable) -> Callable:
    """Wrap `CheckpointEngineManager.build_process_group`: all ranks first agree on the base of the delta."""
    is_first = True  # sync of the run, which is sent whole without a warning

    def build_process_group(self: Any, rollout: Any) -> None:
        nonlocal is_first
        found = set(ray.get(rollout.execute_checkpoint_engine([HAS] * rollout.world_size)))
        common = found.pop() if len(found) == 1 else NO_SYNC
        against = common.number if common.sender == own_id() else 0
        if not against and not is_first:
            logger.warning("delta sync: the engines have no common base; sending all weights")
        is_first = False
        told = []
        for ends in (self.actor_wg, rollout):
            size = ends.world_size
            told += ends.execute_checkpoint_engine([AGAINST] * size, [own_id()] * size, [against] * size)
        ray.get(told)
        original(self, rollout)

    return build_process_group


def telling(engine: Any, told: Callable[[int, int], None] = lambda sender, number: None) -> None:
    """Patch a checkpoint engine so that, before a sync, it receives the sender's id and the base of all engines.

    Its bucket is small for a delta sync. Both ends must use the same size, which determines how tensors are split.
    """
    full, cuts = getattr(engine, "bucket_size", 0), _cuts_tensors(engine)

    def against(sender: int, number: int) -> None:
        if cuts:
            engine.bucket_size = min(full, BUCKET) if number else full
        told(sender, number)

    setattr(engine, AGAINST, against)


def _cuts_tensors(engine: Any) -> bool:
    """Return whether a tensor may be split across buckets, since a mostly changed group is sent whole."""
    return hasattr(engine, "bucket_size") and "split_weight_chunks" in inspect.getsource(type(engine).send_weights)


class DeltaSender:
    """The trainer's end of a delta sync; it decides whether the next weights are sent as deltas.

    Attributes:
        sender: this rank's encoder.
        is_asked: whether the next weights go to disaggregated engines; colocated ones receive whole weights.
    """

    def __init__(self, sender: Sender):
        self.sender, self.is_asked = sender, False

    def against(self, sender: int, number: int) -> None:
        """Send the next weights as deltas relative to sync `number` of `sender`, which all receiving engines have."""
        self.sender.agree(sender, number)
        self.is_asked = True

    def take_turn(self) -> bool:
        """Return whether this sync is sent as deltas, and reset the flag."""
        asked, self.is_asked = self.is_asked, False
        return asked


def receiving(engine: Any, receiver: Receiver) -> None:
    """Patch a checkpoint engine so that it decodes blobs, reports its base, and receives the next sync's base.

    The caller settles the receiver once the engine has applied the weights (`RelayWorker`).
    """
    receive = engine.receive_weights

    async def receive_weights(*args: Any, **kwargs: Any) -> AsyncIterator[NamedTensor]:
        receiver.begin()
        async for name, tensor in receive(*args, **kwargs):
            for pair in receiver.take(name, tensor):
                yield pair

    engine.receive_weights = receive_weights
    setattr(engine, HAS, lambda: receiver.has or NO_SYNC)
    telling(engine)
