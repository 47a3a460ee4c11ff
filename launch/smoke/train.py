"""A few steps of GRPO with int8 rollouts: on a CPU it is the demo itself, elsewhere its recipe on one device."""

from math import isfinite
from pathlib import Path
from statistics import median

from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from launch.child import Ended, python, run
from launch.demo import DemoError
from launch.demo.report import receipt, step_record
from launch.demo.training import read_lines
from launch.doctor.drivers import devices as devices_of
from launch.doctor.facts import GIB, Devices
from launch.doctor.machine import machine
from launch.recipes import load
from launch.smoke import Setting

NAME = "train"
DECIDES = "verl trains with int8 rollouts, and every weight that it sent is proved to have arrived"
RECIPE = "addition-int8"
SECONDS = 1200
LARGEST_K3 = 1e-3  # mismatch KL of a step


def train(setting: Setting) -> Result:
    """The steps, if the memory is there."""
    memory = load(RECIPE).memory
    devices = devices_of(setting.devices)
    if lacking := lack(memory.host, memory.device, machine().memory[1], devices):
        return Result(NAME, DECIDES, NOT_APPLICABLE, reason=f"{lacking}; with more memory: ./run.sh smoke --only train")
    ended, metrics = _on_cpu(setting) if setting.devices == "none" else _on_devices(setting)
    if ended.code != 0:
        return Result(NAME, DECIDES, FAILED, ended.seconds, ended.why())
    try:
        return judged(setting, ended, metrics)
    except DemoError as error:
        return Result(NAME, DECIDES, FAILED, ended.seconds, str(error))


def lack(host_gib: int, device_gib: int, available: int, devices: Devices) -> str:
    """What memory is missing, of the host (bytes that are available) or of the first device; "" for none."""
    if available < host_gib * GIB:
        return f"training needs {host_gib} GiB of memory, {available / GIB:.1f} are available"
    if devices.tool and not devices.found:
        return f"there is no device: {devices.problem}"
    if devices.found:
        first = devices.found[0]
        if first.total_mib is None or first.used_mib is None:
            return f"{devices.tool} does not say how much memory device {first.number} has: {first.health}"
        free = (first.total_mib - first.used_mib) / 1024
        if free < device_gib:
            return f"training needs {device_gib} GiB of device {first.number}, {free:.1f} are free"
    return ""


def _on_cpu(setting: Setting) -> tuple[Ended, Path]:
    out = setting.folder / "demo"
    command = python("-m", "launch", "demo", "--arms", "int8", "--steps", str(setting.steps), "--out", str(out))
    return run(command, setting.folder, NAME, SECONDS, setting.stack), out / "int8" / "metrics.jsonl"


def _on_devices(setting: Setting) -> tuple[Ended, Path]:
    """The recipe, on one device of this machine."""
    data, out = str(setting.folder / "data"), setting.folder / "out"
    command = python("-m", "launch", "data", "addition", "--to", data)
    made = run(command, setting.folder, "data", SECONDS, setting.stack)
    if made.code != 0:
        return made, out
    ended = run(command_of(setting, data, out), setting.folder, NAME, SECONDS, setting.stack)
    return ended, next(out.glob("metrics/**/*.jsonl"), out / "metrics")


def command_of(setting: Setting, data: str, out: Path) -> list[str]:
    """What trains the recipe on one device of this machine."""
    changes = {
        "stack": setting.stack,
        "nodes": 1,
        "verl.trainer.device": setting.device,
        "verl.trainer.total_training_steps": setting.steps,
        "verl.trainer.save_freq": -1,
    }
    command = python("-m", "launch", "train", RECIPE, "--data", data, "--out", str(out))
    return command + [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def judged(setting: Setting, ended: Ended, metrics: Path) -> Result:
    """What verl logged.

    Raises:
        DemoError: a step without one of the demo's metrics.
    """
    lines = read_lines(metrics)
    steps, receipts = [step_record(line) for line in lines], [receipt(line) for line in lines]
    problems = []
    if len(steps) != setting.steps:
        problems.append(f"{len(steps)} of {setting.steps} steps are in {metrics.name}; see {ended.log}")
    if bad := sorted({name for one in steps for name, value in one.items() if not isfinite(value)}):
        problems.append(f"not finite: {', '.join(bad)}")
    if unproved := [number for number, one in enumerate(receipts, start=1) if not one.get("proved")]:
        problems.append(f"nothing was proved to have arrived in step {', '.join(map(str, unproved))}")
    values: dict = {"steps": len(steps)}
    if steps:
        values["mismatch KL"] = largest = max(one["k3_kl"] for one in steps)
        values["weight sync, ms"] = 1000 * median(one["refit_seconds"] for one in steps)
        values |= {"metrics": steps, "receipts": receipts}
        if not largest < LARGEST_K3:
            problems.append(f"the mismatch KL is {largest:.3g}, {LARGEST_K3} at most: sampler and trainer differ")
    return Result(NAME, DECIDES, FAILED if problems else OK, ended.seconds, "; ".join(problems), values)
