"""Part train: a few steps of GRPO with int8 rollouts. On CPUs it is the demo itself, elsewhere its recipe."""

from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from launch.demo.errors import DemoError
from launch.demo.metrics import read_lines, receipt, step_record
from launch.doctor.facts import GIB, Devices
from launch.doctor.gather import DEVICES
from launch.doctor.gather import system as machine
from launch.recipes import load
from launch.smoke.child import Ended, Setting, python, run
from launch.smoke.result import FAILED, Result, judged, not_applicable

RECIPE = "addition-int8"
SECONDS = 1200
TORCH_DEVICES = {"npu": "npu", "gpu": "cuda"}


def train(setting: Setting) -> list[Result]:
    """The steps, if the memory is there."""
    memory = load(RECIPE).memory
    devices = DEVICES[setting.devices]()
    if lacking := lack(memory.host, memory.device, machine([]).memory[1], devices):
        return [not_applicable("train", f"{lacking}; with more memory: ./run.sh smoke --only train")]
    ended, metrics = _on_cpu(setting) if setting.devices == "none" else _on_devices(setting)
    if ended.code != 0:
        return [Result("train", FAILED, ended.seconds, reason=ended.why())]
    try:
        return [_judged(setting, ended, metrics)]
    except DemoError as error:
        return [Result("train", FAILED, ended.seconds, reason=str(error))]


def lack(host_gib: int, device_gib: int, available: int, devices: Devices) -> str:
    """What memory is missing, of the host (bytes that are available) or of the first device; "" for none."""
    if available < host_gib * GIB:
        return f"training needs {host_gib} GiB of memory, {available / GIB:.1f} are available"
    if devices.tool and not devices.found:
        return f"there is no device: {devices.problem}"
    if devices.found:
        first = devices.found[0]
        free = (first.total_mib - first.used_mib) / 1024
        if free < device_gib:
            return f"training needs {device_gib} GiB of device {first.number}, {free:.1f} are free"
    return ""


def _on_cpu(setting: Setting) -> tuple[Ended, Path]:
    out = setting.folder / "demo"
    command = python("-m", "launch", "demo", "--arms", "int8", "--steps", str(setting.steps), "--out", str(out))
    return run(setting, "train", command, SECONDS), out / "int8" / "metrics.jsonl"


def _on_devices(setting: Setting) -> tuple[Ended, Path]:
    """The recipe, on one device of this machine."""
    data, out = str(setting.folder / "data"), setting.folder / "out"
    made = run(setting, "data", python("-m", "launch", "data", "addition", "--to", data), SECONDS)
    if made.code != 0:
        return made, out
    changes = {
        "stack": setting.stack,
        "nodes": 1,
        "verl.trainer.device": TORCH_DEVICES.get(setting.devices, "cpu"),
        "verl.trainer.total_training_steps": setting.steps,
        "verl.trainer.save_freq": -1,
    }
    command = python("-m", "launch", "train", RECIPE, "--data", data, "--out", str(out))
    command += [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    ended = run(setting, "train", command, SECONDS)
    return ended, next(out.glob("metrics/**/*.jsonl"), out / "metrics")


def _judged(setting: Setting, ended: Ended, metrics: Path) -> Result:
    """What verl logged.

    Raises:
        DemoError: a step without one of the demo's metrics.
    """
    lines = read_lines(metrics)
    steps, receipts = [step_record(line) for line in lines], [receipt(line) for line in lines]
    problems = []
    if len(steps) != setting.steps:
        problems.append(f"{len(steps)} of {setting.steps} steps are in {metrics.name}; see {ended.log}")
    bad = sorted({name for one in steps for name, value in one.items() if not isfinite(value)})
    if bad:
        problems.append(f"not finite: {', '.join(bad)}")
    if not steps:
        return judged("train", problems, ended.seconds, "", {})
    return judged("train", problems, ended.seconds, _in_short(steps), {"steps": steps, "receipts": receipts})


def _in_short(steps: list[dict[str, Any]]) -> str:
    refit = 1000 * median(one["refit_seconds"] for one in steps)
    k3 = max(one["k3_kl"] for one in steps)
    return f"{len(steps)} steps, mismatch KL {k3:.1e}, weight sync {refit:.0f} ms"
