"""Settings that all parts of the smoke test share."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.system.child import Ended, run

LAUNCH = (sys.executable, "-m", "launch")
DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # of stacks, as torch calls them


@dataclass(frozen=True)
class Setting:
    """Settings that all parts of the smoke test share."""

    stack: str  # a name in docker/stacks.yaml
    devices: str  # what it computes on: none, npu or gpu
    folder: Path  # theirs to write in
    steps: int  # of the training
    ends: float = float("inf")  # when all time is over, as time.monotonic() has it

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
