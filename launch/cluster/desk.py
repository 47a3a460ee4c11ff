"""State that all attempts of a run share: the count of Ctrl-C, the log files, the status line, and the record.

The terminal shows the lines of the run, and below them one live status line; without a terminal, the status line is
printed when it changes:

joined 2/3 · job RUNNING · step 12 of 100 · 0:12:31
"""

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ascend_quant.processes.cause import COLOUR, Cause
from launch.cluster.record import Record
from launch.system import private

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
DRIVER = "driver"
STEP = re.compile(r"(?:^|\s)step:(\d+) - ")  # verl's console logger prints this once per step
STEPS = re.compile(r"Total training steps: (\d+)")


class Interrupt:
    """Counts Ctrl-C from its creation on: the first one ends the run in order, the second one at once.

    SIGTERM, and a closed terminal if `signals` contains SIGHUP, count like Ctrl-C.
    """

    def __init__(self, signals: Sequence[signal.Signals] = SIGNALS) -> None:
        self.count = 0
        for number in signals:
            signal.signal(number, self._take)

    def _take(self, *_: object) -> None:
        self.count += 1


@dataclass(frozen=True)
class Outcome:
    """Outcome of an attempt: the exit code, lines for the user, and the cause of a failure, if known."""

    code: int
    lines: tuple[str, ...] = ()
    cause: Cause | None = None


class Logs:
    """Log files of a run, in its folder `logs`; only the owner can read them, as they may contain secrets.

    A restart appends to them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        private.make_folder(self.folder)
        self.files: dict[str, TextIO] = {}
        self.lines: Counter[str] = Counter()  # number of lines written, by log name

    def write(self, name: str, line: str) -> None:
        """Append a line to the log of `driver` or of a host."""
        if name not in self.files:
            self.files[name] = private.open_file(self.folder / f"{private.plain(name)}.log", "a")
        self.files[name].write(line + "\n")
        self.files[name].flush()
        self.lines[name] += 1

    def close(self) -> None:
        """Close all files."""
        for file in self.files.values():
            file.close()


class Status:
    """Live status line of a run; `hosts` is the number of hosts that join, 0 on an existing Ray cluster."""

    def __init__(self, console: Console, hosts: int) -> None:
        self.console, self.hosts = console, hosts
        self.joined, self.job, self.doing = 0, "", "starting"
        self.step, self.steps = 0, 0
        self.told = ""
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self.live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.line = self.live.add_task(self.text())

    def __enter__(self) -> "Status":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def text(self) -> str:
        """Return the status as one line, without the elapsed time."""
        parts = [f"joined {self.joined}/{self.hosts}"] if self.hosts else []
        parts.append(f"job {self.job}" if self.job else self.doing)
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        return " · ".join(parts)

    def change(self, **values: int | str) -> None:
        """Change joined, job, doing, step or steps, and update the line."""
        for name, value in values.items():
            setattr(self, name, value)
        self.live.update(self.line, description=self.text())
        if not self.console.is_terminal and self.text() != self.told:
            self.told = self.text()
            self.say(self.told)

    def say(self, line: str) -> None:
        """Print a line above the live one."""
        self._print(Text(line))

    def driver(self, line: str) -> None:
        """Print a line of verl's driver, and update the step from it."""
        text = COLOUR.sub("", line)
        self._print(Text.from_ansi(line))
        if found := STEPS.search(text):
            self.change(steps=int(found[1]))
        if found := STEP.search(text):
            self.change(step=int(found[1]))

    def _print(self, text: Text) -> None:
        """Print a text, or nothing any more once nobody reads it: Ctrl-C also ends the `tee` of `train | tee FILE`."""
        try:
            self.console.print(text, soft_wrap=True)
        except (OSError, SystemExit):  # rich exits if the pipe is broken
            self.console.quiet = True


@dataclass(frozen=True)
class Desk:
    """State that all attempts of a run share.

    Attributes:
        record: the record of the run.
        logs: the log files of the run.
        status: the status line.
        interrupt: the counter of Ctrl-C.
    """

    record: Record
    logs: Logs
    status: Status
    interrupt: Interrupt
