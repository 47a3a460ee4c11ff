"""A conversation with the doctor of a host: a child of ours, ssh or docker, that carries lines of JSON."""

import json
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, Queue
from typing import Any

from launch.processes import piped

END_SECONDS = 5


class HostSilent(RuntimeError):
    """A host did not answer; the message says why."""


class Channel:
    """One host.

    Attributes:
        command: what is run here to reach it.
        reason: makes one line of the command's exit code and stderr.
    """

    def __init__(self, command: Sequence[str], reason: Callable[[int, str], str]) -> None:
        self.reason = reason
        self.child = piped(command)
        self.answers: Queue[str | None] = Queue()
        self.complaints: list[str] = []
        self.readers = [threading.Thread(target=read, daemon=True) for read in (self._read_answers, self._read_stderr)]
        for reader in self.readers:
            reader.start()

    def _read_answers(self) -> None:
        for line in self.child.stdout:
            self.answers.put(line)
        self.answers.put(None)

    def _read_stderr(self) -> None:
        self.complaints += self.child.stderr

    def ask(self, kind: str, value: Any, seconds: float) -> dict[str, Any]:
        """The answer to a request of talk.py.

        Raises:
            HostSilent: the connection ended, or no answer came in time.
        """
        try:
            self.child.stdin.write(json.dumps({kind: value}) + "\n")
            self.child.stdin.flush()
            line = self.answers.get(timeout=seconds)
        except BrokenPipeError:
            line = None
        except Empty:
            raise HostSilent(f"no answer within {seconds:g} s") from None
        if line is None:
            raise HostSilent(self._why())
        return json.loads(line)

    def _why(self) -> str:
        code = self.child.wait()
        for reader in self.readers:
            reader.join(END_SECONDS)
        return self.reason(code, "".join(self.complaints))

    def close(self) -> None:
        """End the child: at the end of its input it ends by itself."""
        with suppress(BrokenPipeError):  # it has ended already
            self.child.stdin.close()
        try:
            self.child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.child.kill()
            self.child.wait()
