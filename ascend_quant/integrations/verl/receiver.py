"""The engine's end of verl's weight transfer, made to end: a dead trainer is noticed, a living one is never stuck.

verl's sender waits for an answer to each bucket without a deadline, and verl's receiver waits for each bucket without
one. So whatever goes wrong here, the remaining buckets are still acknowledged; and the socket's monitor tells when
the sender is gone.
"""

import contextlib
import logging
import time
from typing import Any

import zmq
from verl.workers.rollout.vllm_rollout.bucketed_weight_transfer import BucketedWeightReceiver

from ascend_quant.refit import RefitError

logger = logging.getLogger(__name__)

# verl's sender binds right after it has asked the engine to listen; other ranks may still be busy with their step.
FIRST_MESSAGE_SECONDS = 600


class SenderGone(RefitError):
    """The trainer process that was sending weights no longer answers."""


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
        self.owes_reply = False
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
            return message
        self.gone = True
        if ready:
            raise SenderGone(
                f"the trainer closed {self._address} after {self.received} messages, before its last bucket: "
                "look in the trainer's log for its error, or for what killed it"
            )
        raise SenderGone(
            f"no trainer has sent weights to {self._address} within {FIRST_MESSAGE_SECONDS} s: "
            "it died before the sync, or it uses another replica rank or Ray job id"
        )

    def send(self, data: bytes) -> None:
        self._socket.send(data)
        self.owes_reply = False

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        # an answer left for a dead sender would be delivered to the next one that binds this address
        self._socket.close(linger=0 if self.gone else None)


class DrainingReceiver(BucketedWeightReceiver):
    waited = 0.0  # seconds for the sender's messages, known when all have come

    def _init_socket(self) -> None:
        self.socket = WatchedSocket(self.zmq_context.socket(zmq.REP), self.zmq_handle)

    def _cleanup(self) -> None:
        if self.socket is not None:
            self.waited = self.socket.waited
            self._acknowledge_the_rest()
            if self.socket.gone and self.shm is not None:
                with contextlib.suppress(FileNotFoundError):  # the sender's own resource tracker was faster
                    self.shm.unlink()
        try:
            super()._cleanup()
        finally:
            if self.socket is not None:  # it failed before its last answer
                if self.socket.owes_reply:
                    self.socket.send(b"")
                self.socket.close()
                self.socket = None

    def _acknowledge_the_rest(self) -> None:
        """After an error in this process: let the sender finish, so that the trainer can receive the error."""
        with contextlib.suppress(SenderGone):  # the first error is already on its way up
            while self.socket.owes_reply and not self._ack_pending:
                self.socket.send(b"")
                self._ack_pending = self.socket.recv_pyobj()["is_last"]
