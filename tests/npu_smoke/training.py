"""verl with int8 rollouts: three steps of GRPO, by ./run.sh train, on up to two NPUs."""

import json
import math
import sys
from pathlib import Path
from typing import Any

import torch

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, Setting, check, require

PACKAGES = ("verl", "ray", "vllm", "vllm_ascend", "acl", "typer", "pydantic", "yaml")
RECIPE, STEPS, DEVICES = "addition-int8", 3, 2
DATA_S, TRAIN_S = 60.0, 480.0
K3, PROVED = "rollout_corr/k3_kl", "refit/proved"
LARGEST_K3 = 1e-3
RUN = str(tools.ROOT / "run.sh")


@check("training.three_steps", needed=False, claim="proof", limit_s=DATA_S + TRAIN_S + 60)
def three_steps(on: Setting, numbers: dict) -> None:
    """Does verl train three steps, with every weight proved to have arrived and a policy that hardly moves?"""
    tools.need_packages(*PACKAGES)
    stack, devices = tools.stack(), min(DEVICES, torch.npu.device_count())
    numbers["stack"], numbers["devices"] = stack, devices
    with tools.folder() as folder:
        lines = _trained(folder, stack, devices)
    numbers["steps"] = steps = [_figures(line) for line in lines]
    require(len(steps) == STEPS, f"{len(steps)} of {STEPS} steps were logged")
    numbers[IN_SHORT] = f"{devices} NPUs, mismatch KL {max(one.get(K3, math.inf) for one in steps):.1e}"
    for number, one in enumerate(steps, start=1):
        require(one.get(PROVED, 0) > 0, f"step {number}: {PROVED} is {one.get(PROVED)}: nothing was proved")
        require(one.get(K3, math.inf) < LARGEST_K3, f"step {number}: {K3} is {one.get(K3)}, {LARGEST_K3} at most")


def _trained(folder: Path, stack: str, devices: int) -> list[dict[str, Any]]:
    """The steps that verl logged."""
    data, out = folder / "data", folder / "out"
    mine = {"PYTHON": sys.executable}
    code, said = tools.run([RUN, "data", "addition", "--to", str(data)], DATA_S, folder, mine)
    require(code == 0, f"run.sh data ended with {code}: {' '.join(said.split())[-800:]}")
    changes = {
        "stack": stack,
        "nodes": 1,
        "devices_per_node": devices,
        "verl.trainer.device": "npu",
        "verl.trainer.total_training_steps": STEPS,
        "verl.trainer.save_freq": -1,
    }
    command = [RUN, "train", RECIPE, "--data", str(data), "--out", str(out)]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    code, said = tools.run(command, TRAIN_S, folder, mine)
    require(code == 0, f"run.sh train ended with {code}: {' '.join(said.split())[-1000:]}")
    return [
        json.loads(line)["data"]
        for file in sorted(out.glob("metrics/**/*.jsonl"))
        for line in file.read_text().splitlines()
        if '"timing_s/step"' in line
    ]


def _figures(data: dict[str, Any]) -> dict[str, float]:
    """What of a step is worth sending back."""
    wanted = ("refit/", "rollout_corr/", "timing_s/", "critic/rewards/mean", "response_length/mean")
    return {name: value for name, value in data.items() if name.startswith(wanted) and isinstance(value, (int, float))}
