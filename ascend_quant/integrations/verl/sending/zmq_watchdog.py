"""Timeout for a weight transfer whose receiver has died: the trainer's ZMQ socket detects a lost peer.

verl's sender waits for the answer to each bucket without a timeout. A worker that fails still answers (receiver.py),
but one that was killed, for example by the OOM killer, does not. The socket's monitor detects this.
"""

import time
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from ascend_quant.refit import RefitError

FIRST_ANSWER_SECONDS = 600  # the engine's worker may still be busy with requests, or loading kernels


class ReceiverGone(RefitError):
    """Raised when the engine's worker that was receiving weights no longer answers."""


class AnsweredSocket:
    """A REQ socket that raises ReceiverGone instead of waiting for a peer that no longer exists."""

    def __init__(self, socket: zmq.Socket, address: str) -> None:
        self._socket, self._address = socket, address
        self._monitor = socket.get_monitor_socket(zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._peers = self._answers = 0

    def send_pyobj(self, message: Any) -> None:
        self._wait_until(zmq.POLLOUT)  # waits for a peer
        self._socket.send_pyobj(message)

    def recv(self) -> bytes:
        self._wait_until(zmq.POLLIN)
        self._answers += 1
        return self._socket.recv()

    def _wait_until(self, can: int) -> None:
        poller, deadline = zmq.Poller(), time.monotonic() + FIRST_ANSWER_SECONDS
        poller.register(self._socket, can)
        poller.register(self._monitor, zmq.POLLIN)
        while not self._socket.poll(0, can):  # an answer counts, even if its sender is gone since
            left = None if self._answers else max(0, 1000 * (deadline - time.monotonic()))
            ready = dict(poller.poll(left))
            if not ready:
                raise ReceiverGone(
                    f"no engine worker answered at {self._address} within {FIRST_ANSWER_SECONDS} s: the worker died "
                    "before the weight sync; look in the rollout's log"
                )
            if self._monitor in ready and self._was_the_last() and not self._socket.poll(0, can):
                raise ReceiverGone(
                    f"the engine's worker closed {self._address} after {self._answers} answers, in the middle "
                    "of a weight sync: look for an error in the rollout's log, or in the kernel log for what "
                    "killed the worker"
                )

    def _was_the_last(self) -> bool:
        """Return whether the event means that no peer is left."""
        came = recv_monitor_message(self._monitor)["event"] == zmq.EVENT_ACCEPTED
        self._peers += 1 if came else -1
        return self._peers == 0

    def close(self) -> None:
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)  # a message that was not received must not wait for the next sync's receiver

    def __getattr__(self, name: str) -> Any:
        return getattr(self._socket, name)


class AnsweredContext:
    """A ZMQ context whose sockets are `AnsweredSocket`s."""

    def __init__(self, context: zmq.Context, address: str) -> None:
        self._context, self._address = context, address

    def socket(self, kind: int) -> AnsweredSocket:
        return AnsweredSocket(self._context.socket(kind), self._address)
