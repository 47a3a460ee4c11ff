"""Settings that all parts of the smoke test share."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launch.system.child import Ended, run

LAUNCH = (sys.executable, "-m", "launch")
DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # torch's name of a stack's devices


@dataclass(frozen=True)
class Setting:
    """The settings that all parts of the smoke test share."""

    stack: str  # a name in docker/stacks.yaml
    devices: str  # none, npu or gpu
    folder: Path  # for output
    steps: int  # of the training
    ends: float = float("inf")  # the total deadline, in time.monotonic()

    @property
    def device(self) -> str:
        """The device type in torch."""
        return DEVICES[self.devices]

    @property
    def left(self) -> float:
        """The number of seconds left."""
        return self.ends - time.monotonic()

    def run(self, command: Sequence[str], name: str, limit: float) -> Ended:
        """Run a command in a separate process, in the folder, for as long as its limit and the remaining time allow."""
        return run(command, self.folder, name, min(limit, self.left), self.stack)
