"""The connection of a host's part to the launcher that started it, over stdin, stdout and stderr.

stdin stays open as long as the part should run. Its end, or a minute without a line, ends the part, so that nothing
outlives the launcher. stdout carries the driver's output. stderr carries lines for the user, which begin with a word of
this table, and lines for the host's log:

| line | meaning |
|---|---|
| `note: TEXT` | something to know |
| `error: TEXT` | the host cannot take part, or its part has ended too early |
| `status: JSON` | fields of the status line; the first such line says that the host has passed its checks |
"""

import json
import os
import select
import signal
import sys
import threading
from typing import TextIO

SILENT_SECONDS = 60


def own_stdout() -> TextIO:
    """Return this process's stdout; from now on, output of libraries goes to stderr."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    sys.stdout.flush()
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return channel


class Launcher:
    """The launcher, as a part sees it.

    Attributes:
        ended: set when the part is to end.
        why: why it is to end; empty if the launcher asked for it or is gone.
    """

    def __init__(self, stdout: TextIO) -> None:
        self.ended, self.why = threading.Event(), ""
        self._shown: dict[str, object] = {}
        self._stdout, self._lock = stdout, threading.Lock()

    def follow(self) -> None:
        """Start to watch stdin, and treat signals as an order to end."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: self.end(f"it got {signal.Signals(number).name}"))
        threading.Thread(target=self._watch, daemon=True).start()

    def end(self, why: str = "") -> None:
        """Order the part to end; only the first reason is kept."""
        if not self.ended.is_set():
            self.why = why
            self.ended.set()

    def note(self, text: str) -> None:
        """Tell the user something, one line each."""
        self._tell("note", text)

    def error(self, text: str) -> None:
        """Tell the user why the part cannot run, one line each."""
        self._tell("error", text)

    def status(self, **fields: object) -> None:
        """Change fields of the status line, if they differ from the last ones."""
        if fields != self._shown:
            self._shown = fields
            self._tell("status", json.dumps(fields))

    def log(self, line: str) -> None:
        """Write a line to the host's log."""
        self._write(sys.stderr, line)

    def driver(self, line: str) -> None:
        """Pass on a line of the driver."""
        self._write(self._stdout, line)

    def _tell(self, word: str, text: str) -> None:
        for line in text.splitlines():
            self._write(sys.stderr, f"{word}: {line}")

    def _write(self, stream: TextIO, line: str) -> None:
        try:
            with self._lock:
                stream.write(line + "\n")
                stream.flush()
        except (BrokenPipeError, ValueError):  # the launcher is gone, or has closed the stream
            self.end()

    def _watch(self) -> None:
        while select.select([sys.stdin], [], [], SILENT_SECONDS)[0]:
            if not os.read(sys.stdin.fileno(), 4096):
                return self.end()
        return self.end(f"nothing from the launcher for {SILENT_SECONDS} s")
