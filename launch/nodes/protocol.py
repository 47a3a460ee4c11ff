"""The protocol between a node and the control host: one line of JSON a message.

A node is told its task in the first line of its stdin: `run` (a NodePlan and Ray's token), `facts`, `doctor` (its
Request), or `end_run` (a run's id). Later lines of a running node: `beat` (answered at once, which also compares the
clocks), `go` (start Ray) and `end`. The end of stdin means `end`, and so does silence for a minute: so nothing outlives
the control host.

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
SILENT_SECONDS = 60  # a control host beats every two seconds; it or the network is gone


def emitter(stream: TextIO, lost: Callable[[], None]) -> Emit:
    """Make emit("note", line="..") that writes one line; thread-safe. `lost` is called when nobody reads the channel
    any more."""
    lock = threading.Lock()

    def emit(event: str, **fields: Any) -> None:
        line = json.dumps({"event": event, **fields})
        try:
            with lock:
                stream.write(line + "\n")
                stream.flush()
        except (BrokenPipeError, ValueError):  # the reader has gone, or the stream was closed since
            lost()

    return emit


def parse(line: str) -> Event | None:
    """Parse the event in a line; None when something else has written to the channel, as a login script may."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None


class Orders:
    """Orders of the control host, as events: `go` (start Ray, open to `addresses`), `ended` (end all here, `why`)."""

    def __init__(self) -> None:
        self.go, self.ended = threading.Event(), threading.Event()
        self.why, self.addresses = "", []
        self.heard = time.monotonic()

    def end(self, why: str) -> None:
        """Order the node to end; the first reason is kept."""
        if not self.ended.is_set():
            self.why = why
            self.ended.set()
        self.go.set()  # nobody waits for it any more

    @property
    def unasked(self) -> bool:
        """True if this host's part has to end and the control host does not know why."""
        return self.ended.is_set() and self.why != ASKED

    def follow(self, stream: TextIO, emit: Emit) -> None:
        """Start threads that obey the control host, and handle signals as an order to end."""
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
