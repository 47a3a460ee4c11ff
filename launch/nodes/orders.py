"""What the control host tells a running node: beats, go and end. Silence for a minute, or a closed stdin, means end."""

import json
import signal
import threading
import time
from typing import TextIO

from launch.nodes.events import Emit

ASKED = "the control host says so"
SILENT_SECONDS = 60  # a control host beats every two seconds; it or the network is gone


class Orders:
    """`go`: Ray may start. `ended`: all of this host's part is to end, and `why`."""

    def __init__(self) -> None:
        self.go, self.ended = threading.Event(), threading.Event()
        self.why = ""
        self.heard = time.monotonic()

    def end(self, why: str) -> None:
        """The first reason counts."""
        if not self.ended.is_set():
            self.why = why
            self.ended.set()
        self.go.set()  # nobody waits for it any more

    @property
    def unasked(self) -> bool:
        """It is to end, and the control host does not know why."""
        return self.ended.is_set() and self.why != ASKED

    def follow(self, stream: TextIO, emit: Emit) -> None:
        """Obey what comes from the control host, in threads of its own."""
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
                self.go.set()
            elif "end" in order:
                self.end(ASKED)
        self.end("the control host has gone")

    def _watch(self) -> None:
        while not self.ended.wait(1):
            if time.monotonic() - self.heard > SILENT_SECONDS:
                self.end(f"nothing from the control host for {SILENT_SECONDS} s")
