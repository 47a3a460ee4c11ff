"""How long a refit's kernels take: between events on the device's stream, or on the host's clock where it computes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class KernelClock:
    """Adds up what is started inside `running()`.

    On a device a pair of events stands around each batch of launches, so gaps between a batch's launches count, and
    waiting for the next batch does not. Reading them waits for nothing once the device has been waited for.
    """

    def __init__(self, device: torch.device):
        self._events: list[tuple] = []
        self._seconds = 0.0
        self._device = None if device.type in ("cpu", "meta") else torch.get_device_module(device)

    @contextmanager
    def running(self) -> Iterator[None]:
        if self._device is None:
            start = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - start
            return
        start, end = (self._device.Event(enable_timing=True) for _ in range(2))
        start.record()
        yield
        end.record()
        self._events.append((start, end))

    def milliseconds(self) -> float:
        """Of everything so far; the device must have passed it."""
        return 1e3 * self._seconds + sum(start.elapsed_time(end) for start, end in self._events)
