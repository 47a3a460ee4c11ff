"""Settings that all parts of the smoke test share."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from math import inf
from pathlib import Path

from ascend_quant.processes.child import Ended, run


@dataclass(frozen=True)
class Setting:
    """Settings that all parts of the smoke test share."""

    stack: str  # a name in ascend_quant.recipes.node.Stack
    folder: Path  # for output
    steps: int  # of the training
    ends: float = inf  # the total deadline, in time.monotonic()
    checkpoints: tuple[Path, Path] | None = None  # for the probes of engines
    doctor: bool = False  # whether the launcher's doctor is a part

    @property
    def device(self) -> str:
        """The device type in torch."""
        return "cuda" if self.stack.startswith("cuda") else "npu" if self.stack.startswith("ascend") else "cpu"

    @property
    def left(self) -> float:
        """The number of seconds left."""
        return self.ends - time.monotonic()

    def run(self, command: Sequence[str], name: str, limit: float) -> Ended:
        """Run a command in a separate process, in the folder, for as long as its limit and the remaining time allow."""
        return run(command, self.folder, name, min(limit, self.left), self.stack)


def stack_of(device: str) -> str:
    """Return the stack for a kind of device."""
    if device == "npu":
        return "ascend-cann8.5" if version("torch_npu").startswith("2.7.") else "ascend-cann9.1"
    return {"cuda": "cuda13"}.get(device, device)
