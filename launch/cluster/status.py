"""What the user sees: the run's lines, and below them one live line; without a terminal, that line when it changes.

joined 2/3 · job RUNNING · step 12 of 100 · 0:12:31
"""

import re
import time
from datetime import timedelta

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from launch.cause.exceptions import COLOUR

STEP = re.compile(r"(?:^|\s)step:(\d+) - ")  # verl's console logger, once a step
STEPS = re.compile(r"Total training steps: (\d+)")


class Status:
    """The state of a run, for people."""

    def __init__(self, console: Console, hosts: int) -> None:
        self.console, self.hosts = console, hosts
        self.joined, self.job, self.doing = 0, "", "starting"
        self.step, self.steps = 0, 0
        self.began = time.monotonic()
        self.told = ""
        self.live = Live(console=console, get_renderable=self.render, refresh_per_second=4, transient=True)

    def __enter__(self) -> "Status":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def text(self) -> str:
        """The status without the time."""
        parts = [f"joined {self.joined}/{self.hosts}", self.doing]
        if self.job:
            parts[1] = f"job {self.job}"
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        return " · ".join(parts)

    def render(self) -> Spinner:
        elapsed = timedelta(seconds=int(time.monotonic() - self.began))
        return Spinner("dots", Text(f"{self.text()} · {elapsed}", overflow="ellipsis", no_wrap=True))

    def change(self, **values: int | str) -> None:
        """Set joined, job, doing, step or steps."""
        for name, value in values.items():
            setattr(self, name, value)
        if not self.console.is_terminal and self.text() != self.told:
            self.told = self.text()
            self.say(self.told)

    def say(self, line: str) -> None:
        """A line that stays."""
        self.console.print(Text(line), soft_wrap=True)

    def driver(self, line: str) -> None:
        """A line of verl's driver; its steps are counted."""
        plain = COLOUR.sub("", line)
        self.console.print(Text.from_ansi(line), soft_wrap=True)
        if found := STEPS.search(plain):
            self.change(steps=int(found[1]))
        if found := STEP.search(plain):
            self.change(step=int(found[1]))
