"""The protocol between a node and the control host: one line of JSON per message.

The first line of a node's stdin is its task: `run` (a NodePlan and Ray's token), `facts`, `doctor` (its Request), or
`end_run` (a run's id). A running node also accepts `beat` (answered immediately, which also compares clocks), `go`
(start Ray) and `end`. The end of stdin, or silence for a minute, also means `end`, so nothing outlives the control
host.

| event | means | fields |
|---|---|---|
| alive | the answer to a beat | asked, clock (seconds since the epoch, the asker's and the node's) |
| checked | the host passed its checks | facts |
| examined | what the doctor found | report |
| failed | the host cannot take part, or its part has ended too early | why |
| note | something to know | line |
| started | Ray runs on this host | |
| members | who has joined (of the head) | joined, lost: lists of host numbers, why |
| job | the job's state (of the head) | status, message |
| log | a line of `driver` or `ray` | source, line |
| file | one of Ray's logs, at the end | name, text |
| ended | what ran under the run's id has ended | code, count, kernel_kills |
"""

import json
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

Emit = Callable[..., None]
Event = dict[str, Any]
ASKED = "the control host says so"
SILENT_SECONDS = 60  # a control host beats every two seconds, so it or the network is gone


def emitter(stream: TextIO, lost: Callable[[], None]) -> Emit:
    """Return emit("note", line=".."), which writes one line and is thread-safe. `lost` is called when nobody reads the
    channel any more."""
    lock = threading.Lock()

    def emit(event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields})
        try:
            with lock:
                stream.write(line + "\n")
                stream.flush()
        except (BrokenPipeError, ValueError):  # the reader has ended, or the stream was closed
            lost()

    return emit


def parse(line: str) -> Event | None:
    """Parse the event in a line; None if other programs, such as a login script, have written to the channel."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


class Orders:
    """The control host's orders as events: `go` (start Ray, open to `addresses`) and `ended` (`why`)."""

    def __init__(self) -> None:
        self.go, self.ended = threading.Event(), threading.Event()
        self.why, self.addresses = "", []
        self.heard = time.monotonic()

    def end(self, why: str) -> None:
        """Order the node to end; only the first reason is kept."""
        if not self.ended.is_set():
            self.why = why
            self.ended.set()
        self.go.set()  # wakes up its waiters

    @property
    def unasked(self) -> bool:
        """True if this host's part must end and the control host does not know why."""
        return self.ended.is_set() and self.why != ASKED

    def follow(self, stream: TextIO, emit: Emit) -> None:
        """Start threads that follow the control host's orders, and treat signals as an order to end."""
        signals = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
        for number in signals:
            signal.signal(number, lambda number, _: self.end(f"got {signal.Signals(number).name}"))
        threading.Thread(target=self._read, args=(stream, emit), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _read(self, stream: TextIO, emit: Emit) -> None:
        for line in stream:
            self.heard = time.monotonic()
            order = json.loads(line)
            if "beat" in order:
                emit("alive", asked=order["beat"], clock=time.time())
            elif "go" in order:
                self.addresses = order["go"]
                self.go.set()
            elif "end" in order:
                self.end(ASKED)
        self.end("the control host has gone")

    def _watch(self) -> None:
        while not self.ended.wait(1):
            if time.monotonic() - self.heard > SILENT_SECONDS:
                self.end(f"nothing from the control host for {SILENT_SECONDS} s")
