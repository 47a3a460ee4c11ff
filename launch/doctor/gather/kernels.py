"""What ascend_quant would compute with here, and whether FlashRL still patches vLLM: asked by its commands."""

import json
import sys
from pathlib import Path

from launch.doctor.facts import Kernels
from launch.doctor.gather.tools import ask

SECONDS = 120  # it imports torch, and on an NPU or a GPU starts the driver


def kernels(device: str) -> Kernels:
    """What `ascend-quant kernels` and `ascend-quant cleanup` say; the latter asks before it changes anything."""
    command = str(Path(sys.executable).with_name("ascend-quant"))
    cleanup = ask([command, "cleanup"], SECONDS)  # no terminal, so nobody says yes
    patch = cleanup.output if cleanup.problem else ""
    answer = ask([command, "kernels", device, "--json"], SECONDS)
    if answer.problem:
        return Kernels(problem=answer.problem, patch=patch)
    said = json.loads(answer.output)
    return Kernels(said["device"], said["products"], patch=patch, missing=said["missing"])
