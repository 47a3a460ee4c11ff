"""Settings that all parts of the smoke test share."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.child import Ended, run

LAUNCH = (sys.executable, "-m", "launch")
DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # of stacks, as torch calls them


@dataclass(frozen=True)
class Setting:
    """Settings that all parts of the smoke test share.

    Attributes:
        stack: a name in docker/stacks.yaml.
        devices: what it computes on: none, npu or gpu.
        folder: theirs to write in.
        steps: of the training.
        ends: when all time is over, as time.monotonic() has it.
        model, data: of a training of a real model, see twins.py; None for none.
    """

    stack: str
    devices: str
    folder: Path
    steps: int
    ends: float = float("inf")
    model: Path | None = None
    data: Path | None = None

    @property
    def device(self) -> str:
        """Device type as torch names it."""
        return DEVICES[self.devices]

    @property
    def left(self) -> float:
        """Seconds that are left."""
        return self.ends - time.monotonic()

    def run(self, command: Sequence[str], name: str, limit: float) -> Ended:
        """Run a command in a process of its own, in the folder, for as long as its limit and the time allow."""
        return run(command, self.folder, name, min(limit, self.left), self.stack)
