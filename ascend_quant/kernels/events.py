"""Events on a device's stream: asynchronous copies to the host, and the time of a refit's kernels (on CPUs by the
host's clock)."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class HostCopy:
    """An asynchronous copy to the host, started by the constructor; later work on the stream may overwrite the tensor.

    On an NPU the copy stays on the device until it is read, since torch_npu's pinned memory queries the state of graph
    capture, which not every CANN supports.
    """

    def __init__(self, tensor: torch.Tensor):
        self._event = None
        if tensor.device.type in ("cpu", "npu"):
            self._held = tensor.clone()
            return
        self._held = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu", pin_memory=True)
        self._held.copy_(tensor, non_blocking=True)
        self._event = torch.get_device_module(tensor.device).Event()
        self._event.record()

    def read(self) -> torch.Tensor:
        """Return the copy; wait until the device has finished it."""
        if self._event is not None:
            self._event.synchronize()
        self._held = self._held.cpu()
        return self._held


class KernelClock:
    """A clock that adds up the time of the kernels started inside `running()`.

    On a device, a pair of events encloses each batch of launches, so gaps within a batch count, and waiting for the
    next batch does not. Reading the clock does not wait once the device has been synchronized.
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
        """Return the milliseconds of all kernels so far; the device must have finished them."""
        return 1e3 * self._seconds + sum(start.elapsed_time(end) for start, end in self._events)
