"""verl with int8 rollouts, by ./run.sh train: a few steps of GRPO, both ways of the weights, and one that is NaN."""

import json
import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from npu_smoke import tools
from npu_smoke.checks import IN_SHORT, NotPossible, Setting, check, require

PACKAGES = ("verl", "ray", "vllm", "vllm_ascend", "acl", "typer", "pydantic", "yaml")
RECIPE, STEPS, DEVICES = "addition-int8", 3, 2
SEVEN_B, SEVEN_B_STEPS, SEVEN_B_DEVICES = "qwen2.5-7b-int8-gsm8k-a2", 2, 8
MODEL, DATA = "NPU_SMOKE_MODEL", "NPU_SMOKE_DATA"  # folders of that recipe's, which nothing here may fetch
DATA_S, TRAIN_S, SEVEN_B_S = 60.0, 480.0, 1200.0
K3, PROVED = "rollout_corr/k3_kl", "refit/proved"
LARGEST_K3 = 1e-3
NAN = "model.layers.1.mlp.down_proj.weight"
MOST_S = 60.0  # from the first word of a tensor that is refused to the end of the run
NO_IPC = {"VERL_USE_EXTERNAL_MODULES": "npu_smoke.in_verl"}
RUN = tools.RUN
MARK = "NPU_SMOKE_RUN"  # in the environment of all that a training starts


@check("training.three_steps", needed=False, claim="proof", limit_s=DATA_S + TRAIN_S + 60)
def three_steps(on: Setting, numbers: dict) -> None:
    """Does verl train three steps, with every weight proved to have arrived and a policy that hardly moves?"""
    _addition(numbers)


@check("training.without_ipc", needed=False, claim="proof", limit_s=DATA_S + TRAIN_S + 60)
def without_ipc(on: Setting, numbers: dict) -> None:
    """The same, with weights that go through the host's memory?"""
    _addition(numbers, NO_IPC)


@check("training.nan", needed=False, claim="bad tensors", limit_s=DATA_S + TRAIN_S + 60)
def nan(on: Setting, numbers: dict) -> None:
    """Does a run whose trainer sends a NaN end within a minute, name the tensor, and leave no process?"""
    tools.need_packages(*PACKAGES)
    stack = tools.stack()
    with tools.folder() as folder:
        data = _addition_data(folder)
        _spoil(data / "addition" / "start" / "model.safetensors")
        with _seen(folder / "said.log", NAN) as seen:
            code, said = _train(folder, RECIPE, {"--data": data}, _few(stack, 1, 1), TRAIN_S)
        left = _left(folder)
    numbers["exit code"], numbers["seconds"] = code, seen.get("seconds")
    numbers["said"] = [line.strip()[:300] for line in said.splitlines() if NAN in line][-3:]
    require(code != 0, "the run ended well")
    require("seconds" in seen and "NaN" in said, f"{NAN} was not named: {' '.join(said.split())[-800:]}")
    numbers[IN_SHORT] = f"named, the end {seen['seconds']:.0f} s later"
    require(seen["seconds"] <= MOST_S, f"it ended {seen['seconds']:.0f} s after the tensor was named")
    require(not left, f"processes of the run are left: {', '.join(left)}")


@check("training.seven_b", needed=False, claim="proof", limit_s=SEVEN_B_S + 60)
def seven_b(on: Setting, numbers: dict) -> None:
    """Two steps of the 7B recipe: are all weights proved, and does the policy hardly move?"""
    _seven_b(numbers)


@check("training.seven_b_without_ipc", needed=False, claim="proof", limit_s=SEVEN_B_S + 60)
def seven_b_without_ipc(on: Setting, numbers: dict) -> None:
    """The same, with weights that go through the host's memory?"""
    _seven_b(numbers, NO_IPC)


def _addition(numbers: dict[str, Any], environment: Mapping[str, str] | None = None) -> None:
    tools.need_packages(*PACKAGES)
    stack, devices = tools.stack(), min(DEVICES, torch.npu.device_count())
    with tools.folder() as folder:
        options, changes = {"--data": _addition_data(folder)}, _few(stack, devices, STEPS, environment)
        code, said = _train(folder, RECIPE, options, changes, TRAIN_S)
        lines = _logged(folder, code, said)
    numbers["stack"], numbers["devices"] = stack, devices
    _must_be_good(numbers, lines, STEPS)
    _must_be_without(numbers, environment, said)


def _seven_b(numbers: dict[str, Any], environment: Mapping[str, str] | None = None) -> None:
    tools.need_packages(*PACKAGES)
    tools.need_devices(SEVEN_B_DEVICES)
    lacking = [name for name in (MODEL, DATA) if not Path(os.environ.get(name, "/nowhere")).is_dir()]
    if lacking:
        raise NotPossible(
            f"{' and '.join(lacking)} must name a folder: of Qwen2.5-7B-Instruct, and what `./run.sh data gsm8k` wrote"
        )
    stack, options = tools.stack(), {"--model": os.environ[MODEL], "--data": os.environ[DATA]}
    with tools.folder() as folder:
        changes = _few(stack, SEVEN_B_DEVICES, SEVEN_B_STEPS, environment)
        code, said = _train(folder, SEVEN_B, options, changes, SEVEN_B_S)
        lines = _logged(folder, code, said)
    numbers["stack"], numbers["devices"] = stack, SEVEN_B_DEVICES
    _must_be_good(numbers, lines, SEVEN_B_STEPS)
    _must_be_without(numbers, environment, said)


def _few(stack: str, devices: int, steps: int, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What of a recipe is changed."""
    return {
        "stack": stack,
        "nodes": 1,
        "devices_per_node": devices,
        "verl.trainer.device": "npu",
        "verl.trainer.total_training_steps": steps,
        "verl.trainer.save_freq": -1,
        **{f"environment.{name}": value for name, value in (environment or {}).items()},
    }


def _addition_data(folder: Path) -> Path:
    data = folder / "data"
    code, said = tools.run([RUN, "data", "addition", "--to", str(data)], DATA_S, folder, {"PYTHON": sys.executable})
    require(code == 0, f"run.sh data ended with {code}: {' '.join(said.split())[-800:]}")
    return data


def _train(
    folder: Path, recipe: str, options: Mapping[str, Any], changes: Mapping[str, Any], seconds: float
) -> tuple[int, str]:
    """How `./run.sh train` ended, and what it said; it writes into folder/out."""
    command = [RUN, "train", recipe, "--out", str(folder / "out")]
    command += [str(word) for pair in options.items() for word in pair]
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return tools.run(command, seconds, folder, {"PYTHON": sys.executable, MARK: str(folder)})


def _logged(folder: Path, code: int, said: str) -> list[dict[str, Any]]:
    """The steps that verl logged."""
    require(code == 0, f"run.sh train ended with {code}: {' '.join(said.split())[-1000:]}")
    return [
        json.loads(line)["data"]
        for file in sorted((folder / "out").glob("metrics/**/*.jsonl"))
        for line in file.read_text().splitlines()
        if '"timing_s/step"' in line
    ]


def _must_be_good(numbers: dict[str, Any], lines: list[dict[str, Any]], wanted: int) -> None:
    numbers["steps"] = steps = [_figures(line) for line in lines]
    require(len(steps) == wanted, f"{len(steps)} of {wanted} steps were logged")
    numbers[IN_SHORT] = f"{numbers['devices']} NPUs, mismatch KL {max(one.get(K3, math.inf) for one in steps):.1e}"
    for number, one in enumerate(steps, start=1):
        require(one.get(PROVED, 0) > 0, f"step {number}: {PROVED} is {one.get(PROVED)}: nothing was proved")
        require(one.get(K3, math.inf) < LARGEST_K3, f"step {number}: {K3} is {one.get(K3)}, {LARGEST_K3} at most")


def _must_be_without(numbers: dict[str, Any], environment: Mapping[str, str] | None, said: str) -> None:
    """Where IPC was to be off: it was, in processes of Ray's."""
    if environment == NO_IPC:
        numbers["processes without IPC"] = count = len(set(re.findall(r"pid=.*no IPC in process (\d+)", said)))
        require(count > 0, "in_verl.py was not imported by Ray's processes: IPC was as it always is")


def _figures(data: dict[str, Any]) -> dict[str, float]:
    """What of a step is worth sending back."""
    wanted = ("refit/", "rollout_corr/", "timing_s/", "critic/rewards/mean", "response_length/mean")
    return {name: value for name, value in data.items() if name.startswith(wanted) and isinstance(value, (int, float))}


def _spoil(file: Path) -> None:
    """A NaN in one tensor of a checkpoint: the trainer sends it before the first step."""
    from safetensors.torch import load_file, save_file

    weights = load_file(file)
    weights[NAN][3, 5] = float("nan")
    save_file(weights, file, metadata={"format": "pt"})


@contextmanager
def _seen(log: Path, word: str) -> Iterator[dict[str, float]]:
    """While the block runs: when a file first has a word; at its end, "seconds" since then, if it was there."""
    begun: list[float] = []
    ended, found = threading.Event(), {}

    def look() -> None:
        while not ended.wait(0.5):
            if log.exists() and word.encode() in log.read_bytes():
                begun.append(time.monotonic())
                return

    watcher = threading.Thread(target=look, daemon=True)
    watcher.start()
    try:
        yield found
    finally:
        ended.set()
        watcher.join()
        if begun:
            found["seconds"] = time.monotonic() - begun[0]


def _left(folder: Path) -> list[str]:
    """Processes that a training of this folder has started and that are still there."""
    mark, found = f"{MARK}={folder}\0".encode(), []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (process / "environ").read_bytes() and process.name != str(os.getpid()):
                found.append((process / "comm").read_text().strip())
        except OSError:  # it has just ended, or is another user's
            continue
    return found
