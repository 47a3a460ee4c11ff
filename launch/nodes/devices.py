"""The accelerators of this host: NPUs by their device files, as Ray counts them, and GPUs by nvidia-smi."""

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError

KINDS = {"ascend-cann8.5": "npu", "ascend-cann9.1": "npu", "cuda13": "gpu", "cpu": "none"}
NVIDIA = ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"]
ANSWER_SECONDS = 20


@dataclass(frozen=True)
class Devices:
    """What a stack's devices are (`npu`, `gpu` or `none`) and the numbers of those that are there."""

    kind: str
    numbers: list[int]


def found(stack: str, folder: Path = Path("/dev")) -> Devices:
    """The devices of this host that the stack can use."""
    kind = KINDS[stack]
    return Devices(kind, {"npu": npus, "gpu": lambda _: gpus(), "none": lambda _: []}[kind](folder))


def npus(folder: Path) -> list[int]:
    """Numbers of the NPUs: /dev/davinci0, /dev/davinci1 and so on. A container sees those it was given."""
    names = (re.fullmatch(r"davinci(\d+)", file.name) for file in folder.iterdir())
    return sorted(int(name[1]) for name in names if name)


def gpus() -> list[int]:
    """Numbers of the GPUs that the driver knows; none without nvidia-smi."""
    if shutil.which(NVIDIA[0]) is None:
        return []
    try:
        answer = subprocess.run(NVIDIA, capture_output=True, text=True, timeout=ANSWER_SECONDS)
    except subprocess.TimeoutExpired:
        raise LaunchError(f"nvidia-smi does not answer within {ANSWER_SECONDS} s: look at the driver") from None
    if answer.returncode:
        said = (answer.stdout + answer.stderr).strip().splitlines()
        raise LaunchError(f"nvidia-smi ended with code {answer.returncode}: {said[-1] if said else 'no message'}")
    return [int(line) for line in answer.stdout.split()]


def chosen(wanted: int | list[int], there: Devices) -> list[int]:
    """The numbers of the devices that this host's part of the run uses.

    On stack cpu a device is a name only.

    Raises:
        LaunchError: there are none, or not those that are wanted.
    """
    if there.kind == "none":
        return wanted if isinstance(wanted, list) else list(range(wanted))
    what = {"npu": "NPU (/dev/davinci*)", "gpu": "GPU (nvidia-smi)"}[there.kind]
    if not there.numbers:
        raise LaunchError(f"no {what} on this host: check the driver, or the container's device options")
    if isinstance(wanted, int):
        if wanted > len(there.numbers):
            raise LaunchError(f"{wanted} devices are wanted, and this host has {len(there.numbers)} {what}")
        return there.numbers[:wanted]
    if missing := [number for number in wanted if number not in there.numbers]:
        raise LaunchError(f"no {what} {missing}: this host has {there.numbers}")
    return wanted
