"""`./run.sh smoke`, `docker run IMAGE smoke`: does this installation work on this machine? One JSON file.

The doctor, the device's probes, and a few steps of GRPO with int8 rollouts: on a CPU the demo itself, elsewhere its
recipe on one device. One after the other; what fails, however it fails, does not stop the others.
"""

import datetime
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console

from ascend_quant import __version__
from ascend_quant.smoke.probes import Probe, probes_for
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result, document, show
from launch import LaunchError
from launch.child import Ended, run
from launch.demo.report import receipt, step_record
from launch.demo.training import read_lines
from launch.doctor.drivers import devices as devices_of
from launch.doctor.facts import GIB, Devices
from launch.doctor.hosts import examine
from launch.doctor.machine import machine
from launch.recipes import load
from launch.software import CHIP_VARIABLE

DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # of stacks, as torch calls them
START_S = 300  # until the first probe begins: it imports torch and vLLM, and starts the driver
DOCTOR, TRAIN = ALONE = ("doctor", "train")  # no probes
FINDS = "the doctor finds nothing that would stop a run"
DECIDES = "verl trains with int8 rollouts, and every weight that it sent is proved to have arrived"
LAUNCH = (sys.executable, "-m", "launch")
RECIPE = "addition-int8"
TRAIN_S = 1200
LARGEST_K3 = 1e-3  # mismatch KL of a step


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


def smoke(stack: str, devices: str, steps: int, wanted: Sequence[str], console: Console) -> dict[str, Any]:
    """Carry out what is wanted (all for none), show what comes of it, return what the JSON file holds.

    Raises:
        UnknownProbe: a name that there is not, and those that there are.
    """
    started = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    alone = [name for name in ALONE if not wanted or name in wanted]
    others, begun = [name for name in wanted if name not in ALONE], time.monotonic()
    probes = probes_for(DEVICES[devices], others) if others or not wanted else []
    setting, results = Setting(stack, devices, Path(tempfile.mkdtemp(prefix="aq-smoke-")), steps), []
    for result in _results(setting, alone, probes):
        show(result, console)
        results.append(result)
    about = {
        "version": __version__,
        "started": started,
        "seconds": round(time.monotonic() - begun, 1),
        "stack": stack,
        "chip": os.environ.get(CHIP_VARIABLE) or None,
        "device": setting.device,
    }
    content = document(results, about)
    if content["ok"]:
        shutil.rmtree(setting.folder)
    else:
        console.print(f"logs: {setting.folder}", soft_wrap=True)
    return content


def _results(setting: Setting, alone: Sequence[str], probes: Sequence[Probe]) -> Iterator[Result]:
    """Training comes before engines and speeds: it is likeliest to break on a device."""
    if DOCTOR in alone:
        yield _doctor()
    yield from carried_out(setting, [one for one in probes if not one.slow])
    if TRAIN in alone:
        yield train(setting)
    yield from carried_out(setting, [one for one in probes if one.slow])


def _doctor() -> Result:
    """Its findings; errors fail."""
    begun = time.monotonic()
    report = examine()
    by_level = {level: [one for one in report.findings if one.level == level] for level in ("error", "warning", "ok")}
    errors = [f"{one.check}: {one.what} ({one.fix})" for one in by_level["error"]]
    values: dict[str, Any] = {level: len(found) for level, found in by_level.items()}
    values["findings"] = [asdict(one) for one in report.findings if one.level != "ok"]
    values["traits"] = report.hosts[0].traits
    seconds = round(time.monotonic() - begun, 1)
    return Result(DOCTOR, FINDS, FAILED if errors else OK, seconds, "; ".join(errors), values)


def carried_out(setting: Setting, probes: Sequence[Probe]) -> Iterator[Result]:
    """The results of `ascend-quant smoke`, whose probes may end their process, or never return.

    Quick ones share a process for as long as it lives, each slow one has its own.
    """
    left = list(probes)
    while left:
        together = [left[0]] if left[0].slow else [one for one in left if not one.slow]
        for result in _together(setting, together):
            left = [one for one in left if one.name != result.name]
            yield result


def _together(setting: Setting, probes: Sequence[Probe]) -> list[Result]:
    """The results until the process ended; of the first at least."""
    name = probes[0].name
    out = setting.folder / f"{name}.json"
    command = [str(Path(sys.executable).with_name("ascend-quant")), "smoke", "--device", setting.device]
    command += ["--out", str(out), *(word for one in probes for word in ("--only", one.name))]
    ended = run(command, setting.folder, name, START_S + sum(one.limit_s for one in probes), setting.stack)
    found = [Result(**one) for one in json.loads(out.read_text())["probes"]] if out.exists() else []
    if len(found) < len(probes):
        lost = probes[len(found)]
        found.append(Result(lost.name, lost.decides, FAILED, ended.seconds, ended.why()))
    return found


def train(setting: Setting) -> Result:
    """The steps, if the memory is there."""
    memory = load(RECIPE).memory
    devices = devices_of(setting.devices)
    if lacking := lack(memory.host, memory.device, machine().memory[1], devices):
        return Result(
            TRAIN, DECIDES, NOT_APPLICABLE, reason=f"{lacking}; with more memory: ./run.sh smoke --only train"
        )
    ended, metrics = _on_cpu(setting) if setting.devices == "none" else _on_devices(setting)
    if ended.code != 0:
        return Result(TRAIN, DECIDES, FAILED, ended.seconds, ended.why())
    try:
        return judged(setting, ended, metrics)
    except LaunchError as error:
        return Result(TRAIN, DECIDES, FAILED, ended.seconds, str(error))


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
    command = [*LAUNCH, "demo", "--arms", "int8", "--steps", str(setting.steps), "--out", str(out)]
    return run(command, setting.folder, TRAIN, TRAIN_S, setting.stack), out / "int8" / "metrics.jsonl"


def _on_devices(setting: Setting) -> tuple[Ended, Path]:
    """The recipe, on one device of this machine."""
    data, out = str(setting.folder / "data"), setting.folder / "out"
    command = [*LAUNCH, "data", "addition", "--to", data]
    made = run(command, setting.folder, "data", TRAIN_S, setting.stack)
    if made.code != 0:
        return made, out
    ended = run(command_of(setting, data, out), setting.folder, TRAIN, TRAIN_S, setting.stack)
    return ended, next(out.glob("metrics-*/**/*.jsonl"), out / "metrics")


def command_of(setting: Setting, data: str, out: Path) -> list[str]:
    """What trains the recipe on one device of this machine."""
    changes = {
        "stack": setting.stack,
        "nodes": 1,
        "verl.trainer.device": setting.device,
        "verl.trainer.total_training_steps": setting.steps,
        "verl.trainer.save_freq": -1,
    }
    command = [*LAUNCH, "train", RECIPE, "--data", data, "--out", str(out)]
    return command + [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


def judged(setting: Setting, ended: Ended, metrics: Path) -> Result:
    """What verl logged.

    Raises:
        LaunchError: a step without one of the demo's metrics.
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
    return Result(TRAIN, DECIDES, FAILED if problems else OK, ended.seconds, "; ".join(problems), values)
