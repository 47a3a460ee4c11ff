"""The engine's end of verl's weight transfer: it detects a dead trainer, and answers every message of a live one.

verl's sender waits for the answer to each bucket without a timeout, and verl's receiver for each bucket. So after an
error here, the remaining buckets are still acknowledged; and the socket's monitor reports if the sender is gone.
"""

import contextlib
import logging
import sys
import time
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

from ascend_quant.refit import RefitError

logger = logging.getLogger(__name__)

# verl's sender binds right after it has asked the engine to listen; other ranks may still be busy with their step.
FIRST_MESSAGE_SECONDS = 600
SENDER_REMOVES_SECONDS = 2  # time for the sender to remove its shared memory, after it has closed its socket


class SenderGone(RefitError):
    """Raised when the trainer process that was sending weights no longer answers."""


class WatchedSocket:
    """A REP socket whose recv_pyobj raises SenderGone instead of waiting for a peer that no longer exists."""

    def __init__(self, socket: zmq.Socket, address: str) -> None:
        self._socket = socket
        self._address = address
        self._monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._poller = zmq.Poller()
        self._poller.register(socket, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self.received = 0
        self.waited = 0.0  # seconds
        self.owes_reply = self.ended = False  # ended: the sync's last message has been received
        self.gone = False
        socket.connect(address)

    def recv_pyobj(self) -> Any:
        deadline, start = None if self.received else FIRST_MESSAGE_SECONDS * 1000, time.perf_counter()
        ready = dict(self._poller.poll(deadline))
        self.waited += time.perf_counter() - start
        if self._socket in ready:
            message = self._socket.recv_pyobj()
            self.received += 1
            self.owes_reply = True
            self.ended = isinstance(message, dict) and message.get("is_last", False)
            return message
        self.gone = True
        if ready:
            raise SenderGone(
                f"the trainer closed {self._address} after {self.received} messages, before its last bucket: "
                "look for an error in the trainer's log, or for what killed the trainer"
            )
        raise SenderGone(
            f"no trainer has sent weights to {self._address} within {FIRST_MESSAGE_SECONDS} s: it died before "
            "the sync, or uses another socket name (derived from the device; with verl 0.9.1 by Ray's job "
            "and node and the replica's rank)"
        )

    def send(self, data: bytes) -> None:
        self._socket.send(data)
        self.owes_reply = False

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        # a reply left for a dead sender would be delivered to the next one that binds this address
        self._socket.close(linger=0 if self.gone else None)


class DrainingReceiver(BucketedWeightReceiver):
    """verl's weight receiver, which answers every message; the last one after its buffer is released.

    It only relies on verl's class receiving from `self.socket`, so it works for versions that answer the last message
    in the loop (commit bcb638649a50) and in `_cleanup` (0.9.1).
    """

    waited = 0.0  # seconds spent waiting for the sender, known once all messages have arrived
    releasing = 0.0  # seconds to release the sender's memory, and to return unused memory of this process

    def _init_socket(self) -> None:
        self.socket = WatchedSocket(self.zmq_context.socket(zmq.REP), self.zmq_handle)

    def _cleanup(self) -> None:
        socket, self.socket = self.socket, None  # verl's code would close it, or also answer
        if socket is not None:
            self.waited = socket.waited
            self._acknowledge_the_rest(socket)
            if socket.gone and self.shm is not None:
                self._remove(self.shm)
        start = time.perf_counter()
        try:
            self._release(sys.exc_info()[1])
        finally:
            self.releasing = time.perf_counter() - start
            if socket is not None:
                if socket.owes_reply:
                    socket.send(b"")
                socket.close()

    def _remove(self, segment: SharedMemory) -> None:
        """Unlink the shared memory of a killed sender; a live sender removes it itself, and fails if it is missing."""
        end, file = time.monotonic() + SENDER_REMOVES_SECONDS, Path("/dev/shm", segment.name)
        while file.exists() and time.monotonic() < end:
            time.sleep(0.05)
        with contextlib.suppress(FileNotFoundError):  # already removed by the sender or its resource tracker
            segment.unlink()

    def _release(self, error: BaseException | None) -> None:
        """Release the sender's memory, without a second error that would hide the first."""
        try:
            super()._cleanup()
        except BufferError:  # the error's traceback holds tensors in that memory
            if error is None:
                raise
            logger.warning("the trainer's shared memory stays mapped until the exception is released: %s", error)

    def _acknowledge_the_rest(self, socket: WatchedSocket) -> None:
        """Acknowledge the remaining buckets after an error, so that the sender finishes and receives the error."""
        with contextlib.suppress(SenderGone):  # the first error is already being raised
            while socket.owes_reply and not socket.ended:
                socket.send(b"")
                socket.recv_pyobj()
