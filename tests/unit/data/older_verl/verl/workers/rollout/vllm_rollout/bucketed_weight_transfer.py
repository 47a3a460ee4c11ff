"""Both ends of a weight transfer through shared memory: REQ binds and sends, REP connects and answers each message.

First {"name", "size"} of the segment; then, a bucket, {"bucket_meta": {name: shape, dtype, offset}, "is_last"}, each
once its tensors lie in the segment.
"""

import math
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from multiprocessing.shared_memory import SharedMemory

import torch
import zmq
from verl.utils.device import get_torch_device


def rebuild_shared_memory(name: str, size: int) -> tuple[torch.Tensor, SharedMemory]:
    segment = SharedMemory(name=name)
    return torch.frombuffer(segment.buf[:size], dtype=torch.uint8), segment


class _End:
    """What both have; `shm` is the segment and `buffer` its bytes."""

    socket: zmq.Socket | None = None
    buffer: torch.Tensor | None = None
    shm: SharedMemory | None = None

    def __init__(self, zmq_handle: str) -> None:
        self.zmq_handle, self.zmq_context = zmq_handle, zmq.Context.instance()

    def _cleanup(self) -> None:
        if self.socket is not None:
            self.socket.close()
            self.socket = None
        get_torch_device().synchronize()
        self.buffer = None
        if self.shm is not None:
            self.shm.close()
        get_torch_device().ipc_collect()
        get_torch_device().empty_cache()


class BucketedWeightSender(_End):
    def __init__(self, zmq_handle: str, bucket_size_mb: int, use_shm: bool) -> None:
        assert use_shm
        super().__init__(zmq_handle)
        self.bucket_size = bucket_size_mb << 20

    async def async_send_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        try:
            self._init_socket()
            self._init_buffer()
            async for bucket_meta, is_last in self._buckets(weights):
                self._ask({"bucket_meta": bucket_meta, "is_last": is_last})
        finally:
            self._cleanup()

    async def _buckets(self, weights: Iterable[tuple[str, torch.Tensor]]) -> AsyncIterator[tuple[dict, bool]]:
        bucket_meta, offset = {}, 0
        for name, weight in weights:
            if offset + weight.nbytes > self.bucket_size:
                yield bucket_meta, False
                bucket_meta, offset = {}, 0
            assert weight.nbytes <= self.bucket_size, f"{name} does not fit into a bucket"
            bucket_meta[name] = {"name": name, "shape": weight.shape, "dtype": weight.dtype, "offset": offset}
            self.buffer[offset : offset + weight.nbytes] = weight.view(-1).view(torch.uint8)
            offset += weight.nbytes
        yield bucket_meta, True

    def _ask(self, message: dict) -> None:
        self.socket.send_pyobj(message)
        self.socket.recv()  # without a deadline

    def _init_socket(self) -> None:
        self.socket = self.zmq_context.socket(zmq.REQ)
        self.socket.bind(self.zmq_handle)

    def _init_buffer(self) -> None:
        self.shm = SharedMemory(f"verl_weights_{uuid.uuid4().hex}", create=True, size=self.bucket_size)
        self.buffer = torch.frombuffer(self.shm.buf, dtype=torch.uint8)
        self._ask({"name": self.shm.name, "size": self.bucket_size})

    def _cleanup(self) -> None:
        super()._cleanup()
        if self.shm is not None:
            self.shm.unlink()
            self.shm = None


class BucketedWeightReceiver(_End):
    def __init__(self, zmq_handle: str, device: torch.device, use_shm: bool) -> None:
        assert use_shm
        super().__init__(zmq_handle)
        self.device = device

    def receive_weights(self, on_bucket_received: Callable[[list[tuple[str, torch.Tensor]]], None]) -> None:
        try:
            self._init_socket()
            self._init_buffer()
            is_last = False
            while not is_last:
                message = self.socket.recv_pyobj()
                is_last = message["is_last"]
                weights = [(name, self._tensor(**meta)) for name, meta in message["bucket_meta"].items()]
                on_bucket_received(weights)
                get_torch_device().synchronize()
                self.socket.send(b"")
                del weights
        finally:
            self._cleanup()

    def _tensor(self, name: str, shape: torch.Size, dtype: torch.dtype, offset: int) -> torch.Tensor:
        size = dtype.itemsize * math.prod(shape)
        return self.buffer[offset : offset + size].view(dtype).view(shape).to(self.device)

    def _init_socket(self) -> None:
        self.socket = self.zmq_context.socket(zmq.REP)
        self.socket.connect(self.zmq_handle)

    def _init_buffer(self) -> None:
        message = self.socket.recv_pyobj()
        self.buffer, self.shm = rebuild_shared_memory(message["name"], message["size"])
        self.socket.send(b"")

    def _cleanup(self) -> None:
        super()._cleanup()
        self.shm = None
