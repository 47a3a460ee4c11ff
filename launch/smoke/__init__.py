"""`./run.sh smoke`, `docker run IMAGE smoke`: does this installation work on this machine? One JSON file.

run.py    the doctor, the device's probes, three training steps, and the file
train.py  a few steps of GRPO with int8 rollouts
"""

from dataclasses import dataclass
from pathlib import Path

DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # of stacks, as torch calls them


@dataclass(frozen=True)
class Setting:
    """What all parts of the smoke test share.

    Attributes:
        stack: a name in docker/stacks.yaml.
        devices: what it computes on: none, npu or gpu.
        folder: theirs to write in.
        steps: of the training.
    """

    stack: str
    devices: str
    folder: Path
    steps: int

    @property
    def device(self) -> str:
        """As torch calls it."""
        return DEVICES[self.devices]
