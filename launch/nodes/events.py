"""What a node tells the control host, one line of JSON each, and what it is told.

A node is told its task in the first line of its stdin: `run` (a NodePlan and Ray's token), `facts`, or `end_run` (a
run's id). Later lines of a running node: `beat` (answered at once, which also compares the clocks), `go` (start Ray)
and `end`. The end of stdin means `end`, so nothing outlives the control host.

| event | means | fields |
|---|---|---|
| alive | the answer to a beat | asked, clock (seconds since the epoch, the asker's and the node's) |
| checked | the host passed its checks | facts |
| failed | the host cannot take part, or its part has ended too early | why |
| note | something to know | line |
| started | Ray runs on this host | pid, address |
| members | who has joined (of the head) | joined, lost: lists of host numbers, why |
| failures | what has failed in Ray, before the state of a job that has failed (of the head) | found |
| job | the job's state (of the head) | status, message |
| log | a line of `driver` or `ray` | source, line |
| file | one of Ray's logs, at the end | name, text |
| ended | what ran under the run's id has ended | code, count, kernel_kills |
"""

import json
import threading
from collections.abc import Callable
from typing import Any, TextIO

Emit = Callable[..., None]
Event = dict[str, Any]


def emitter(stream: TextIO, lost: Callable[[], None]) -> Emit:
    """emit("started", pid=1) writes one line; threads may share it. `lost` is called when nobody reads any more."""
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
    """The event in a line; None when something else has written to the channel, as a login script may."""
    try:
        event = json.loads(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
