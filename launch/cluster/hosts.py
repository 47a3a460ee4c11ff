"""What the control host knows of each host of a run, from its events."""

import time
from dataclasses import dataclass, field
from typing import Any

from launch.clock import Clock
from launch.cluster.transport import Channel

SILENT_SECONDS = 15


@dataclass
class HostState:
    """One host in one attempt. Moments are those of time.monotonic().

    Attributes:
        channel: to its node process; None for hosts that another process has started (--on-this-node).
        problem: why it cannot take part, or why it died, one line; it is final.
        passing: why it could not be reached so far; it is tried again.
        heard: when it was last heard.
        waited: since when a beat has had no answer; None when there is none open.
        last_line: what its Ray or its node process wrote last.
        ended: its node process says that all it had started has ended.
        kernel_kills: how many processes the kernel has ended there meanwhile for want of memory, the run's or others'.
        closed: its channel is.
    """

    address: str
    channel: Channel | None = None
    clock: Clock = field(default_factory=Clock)
    facts: dict[str, Any] | None = None
    started: bool = False
    joined: bool = False
    problem: str | None = None
    passing: str | None = None
    heard: float = 0.0
    waited: float | None = None
    last_line: str = ""
    ended: bool = False
    kernel_kills: int = 0
    closed: bool = False

    @property
    def open(self) -> bool:
        """Whether orders can reach it."""
        return self.channel is not None and not self.closed

    def beat(self) -> None:
        """Ask whether it lives."""
        self.waited = time.monotonic() if self.waited is None else self.waited
        self.channel.send({"beat": time.time()})

    def hear(self) -> None:
        """It has said something."""
        self.heard, self.waited = time.monotonic(), None

    def silent(self) -> str | None:
        """Why it counts as dead although its channel is open."""
        quiet = 0.0 if self.waited is None or not self.open else time.monotonic() - self.waited
        return f"silent for {quiet:.0f} s: it is down, or the network to it is" if quiet >= SILENT_SECONDS else None

    def last_words(self) -> str:
        """What it wrote last, where that is not in the reason already."""
        telling = self.last_line and self.last_line not in (self.problem or "")
        return f"; its last words: {self.last_line[:200]}" if telling else ""
