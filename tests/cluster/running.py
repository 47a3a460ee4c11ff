"""A command that runs on a host: its output so far, waiting for a line of it, Ctrl-C."""

import os
import re
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import psutil

from ascend_quant.processes.tree import signal_each


class Running:
    """A command in a session of its own, as in a terminal; its output, both streams, goes to a file."""

    def __init__(self, command: list[str], environment: dict[str, str], output: Path) -> None:
        self.output = output
        with output.open("wb") as stream:
            self._process = subprocess.Popen(
                ["env", "--default-signal=INT,QUIT,HUP", *command],  # whatever those who started the tests ignore
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_text(errors="replace")

    @property
    def is_on(self) -> bool:
        """Return whether the command still runs."""
        return self._process.poll() is None

    def wait(self, seconds: float) -> int:
        """Its exit code.

        Raises:
            AssertionError: it still runs after these seconds; with the end of its output.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still runs after {seconds:.0f} s; it printed:\n{self.text[-6000:]}") from None

    def wait_for(self, pattern: str, seconds: float, after: int = 0) -> re.Match[str]:
        """The first match of a pattern in its output.

        Args:
            after: how many characters of the output do not count.

        Raises:
            AssertionError: it ended, or the seconds passed, without one; with the end of its output.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self._process.poll() is not None  # asked before the last look
            if match := re.search(pattern, self.text[after:], flags=re.MULTILINE):
                return match
            if ended or time.monotonic() > deadline:
                how = f"ended with code {self._process.returncode}" if ended else f"waited {seconds:.0f} s"
                raise AssertionError(f"no {pattern!r} in its output ({how}); it printed:\n{self.text[-6000:]}")
            time.sleep(0.05)

    def press_ctrl_c(self) -> None:
        """SIGINT to all processes of the terminal's group, as a terminal does; nsenter stands outside the host."""
        signal_each(self.group(), lambda process: process.send_signal(signal.SIGINT))

    def group(self) -> list[psutil.Process]:
        """The processes of the command that a terminal would signal."""
        group, found = self._process.pid, []
        for process in descendants(group):
            with suppress(ProcessLookupError):  # it has just ended
                found += [process] if os.getpgid(process.pid) == group else []
        return found

    def wake(self) -> None:
        """Let nsenter go on, which stops when its command is stopped."""
        self._process.send_signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill what a terminal would; for clearing up after a failed test."""
        signal_each(self.group(), psutil.Process.kill)
        self._process.kill()
        self._process.wait()


def descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
