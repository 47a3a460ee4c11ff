"""GPU memory during a sync to colocated engines: the trainer's cached memory beside the engine's share
(gpu_memory_utilization), and the time at which the engine wakes up.

verl 0.9.1 does everything in sequence: the trainer's allocator releases its cache (0.27 of the 0.69 s of a 7B sync on
two H100s), the engine's weights wake up (0.09 s), the first weights are gathered, all weights are sent, and the KV
cache wakes up (0.06 s). With this module the engine wakes up while the first weights are gathered, and its KV cache
while the trainer continues (replica.py). If each device has the engine's whole share of memory free besides the
trainer's cache, as with a 7B model on H200s, the trainer keeps its cache for the next step, and prepares weights in
advance: up to half the size of its cache, or up to what the engine and the sync's own buffers leave free.

Prepared weights and buffers need additional memory, which stays allocated when the KV cache wakes up: verl disables
expandable segments during a sync, since their memory cannot be shared by IPC, so the allocator does not reuse the cache
of a step, which is in such segments.

Either all ranks keep their cache or none does, since one of them wakes the engine's workers on several devices.
"""

import asyncio
import functools
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ascend_quant.transfer.validate import NamedTensor

logger = logging.getLogger(__name__)

WEIGHTS, CACHE = "weights", "kv_cache"  # vLLM's tags for wake_up
BUCKETS = 2  # of a sync to a colocated engine: one in verl's transport, one for a large tensor
BESIDE = 1 << 30  # bytes of temporary memory: the transport's own, and the work space of a refit

_keeps: ContextVar[bool] = ContextVar("whether the trainer keeps what its allocator has cached", default=False)


@dataclass(frozen=True)
class Room:
    """Memory that is free on every rank's device besides the engine's share, so that the trainer can keep its cache.

    Attributes:
        kept: unused bytes that this rank's allocator has cached.
        ahead: bytes of weights that each rank may prepare before its engine is awake; equal on all ranks.
    """

    kept: int
    ahead: int


def find_room(share: float | None, bucket: int) -> Room | None:
    """Check whether every rank's device has memory for the engine and a sync, and how much remains to prepare weights.

    A collective, over the default process group.

    Args:
        share: the largest fraction of a device that an awake engine uses; None if unknown or not applicable.
        bucket: size of the transport's buckets, in bytes.
    """
    if share is None:  # by the settings, so on all ranks
        return None
    device = _device()
    free, total = device.mem_get_info()
    kept = device.memory_reserved() - device.memory_allocated()
    left = free - math.ceil(share * total) - BUCKETS * bucket - BESIDE
    least = torch.tensor([left, kept // 2], dtype=torch.int64)
    if dist.is_initialized():
        dist.all_reduce(least, dist.ReduceOp.MIN)
    return Room(kept, int(least.min())) if least[0] >= 0 else None


def _device() -> Any:
    """Return torch.cuda or torch.npu, as verl does; hooks.py imports this file before verl's modules."""
    from verl.utils.device import get_torch_device

    return get_torch_device()


@contextmanager
def keep_allocator_cache() -> Generator[None]:
    """Make `empty_cache` of verl's device module a no-op, in this task and the tasks that it starts."""
    token = _keeps.set(True)
    try:
        yield
    finally:
        _keeps.reset(token)


def with_cache_kept(original: Callable) -> Callable:
    """Wrap `get_torch_device`: `empty_cache` does nothing while the trainer keeps its allocator's cache in a sync."""

    @functools.wraps(original)
    def get_device() -> Any:
        return _Otherwise(original(), empty_cache=lambda: None) if _keeps.get() else original()

    return get_device


def with_own_stream(original: Callable) -> Callable:
    """Wrap `get_torch_device`: `synchronize` waits only for this thread's current stream, not for the whole device."""

    @functools.wraps(original)
    def get_device() -> Any:
        device = original()
        stream = device.current_stream()
        # the CPU's has nothing to wait for
        return _Otherwise(device, synchronize=stream.synchronize) if hasattr(stream, "synchronize") else device

    return get_device


class _Otherwise:
    """A proxy of a device module (torch.cuda, ..) with some functions replaced."""

    def __init__(self, device: Any, **functions: Callable[[], None]) -> None:
        self._device = device
        vars(self).update(functions)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._device, name)


@asynccontextmanager
async def overlap_wake_up(rollout: Any, room: Room | None) -> AsyncGenerator[None]:
    """Let an engine wake up while the first weights are gathered, for one sync."""
    early = _EarlyWakeUp(rollout, room)
    rollout.resume, rollout.update_weights = early.resume, early.update_weights
    try:
        yield
    finally:
        del rollout.resume, rollout.update_weights  # reveals the methods of the class
        await early.over()


class _EarlyWakeUp:
    """Replaces an engine's `resume` and `update_weights` for one sync, so that waking up overlaps with gathering."""

    def __init__(self, rollout: Any, room: Room | None) -> None:
        self._resume, self._update_weights = rollout.resume, rollout.update_weights
        # equal on all ranks, since gathers are collectives: a rank that waits for an engine must not be waited for
        self._ahead = 0 if room is None else room.ahead
        self._waking: asyncio.Task | None = None

    async def resume(self, tags: Sequence[str]) -> None:
        """Start waking up the weights; other requests are passed on."""
        if list(tags) == [WEIGHTS]:
            self._waking = asyncio.ensure_future(self._resume(tags=tags))
            await asyncio.sleep(0)  # lets the request to the engine start before this thread computes
        else:
            await self._resume(tags=tags)

    async def update_weights(self, weights: Iterable[NamedTensor], *args: Any, **kwargs: Any) -> Any:
        """Prepare the first weights, then send all of them once the engine is awake."""
        coming = iter(weights)
        try:
            with torch.no_grad():
                first = _first(coming, self._ahead)
        finally:
            await self._awake()
        return await self._update_weights(_all(first, coming), *args, **kwargs)

    async def over(self) -> None:
        """Wait for the wake-up, also if an error occurred before any weights were sent."""
        try:
            await self._awake()
        except Exception as error:
            logger.error("after the failed weight sync, waking up the engine failed too: %s", error)

    async def _awake(self) -> None:
        waking, self._waking = self._waking, None
        if waking is not None:
            await waking


def _first(weights: Iterator[NamedTensor], size: int) -> deque[NamedTensor]:
    """Return the first weights, at least one, up to `size` bytes."""
    found: deque[NamedTensor] = deque()
    for name, tensor in weights:
        found.append((name, tensor))
        size -= tensor.nbytes
        if size <= 0:
            break
    return found


def _all(first: deque[NamedTensor], others: Iterator[NamedTensor]) -> Iterator[NamedTensor]:
    """Yield the first weights without keeping references, then the others."""
    while first:
        yield first.popleft()
    yield from others
