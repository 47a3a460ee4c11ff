"""Training as a part of the smoke test: a few steps with int8 rollouts, then one whose weights contain a NaN."""

import json
import re
from math import isfinite
from pathlib import Path
from statistics import median

from ascend_quant.integrations.verl.training.attention_settings import LIBRARY
from ascend_quant.recipes.keys import ROLLOUT
from ascend_quant.smoke import SPOILT
from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from launch import LaunchError
from launch.demo.report import receipt, step_record
from launch.demo.training import read_lines
from launch.doctor.drivers import Devices
from launch.doctor.drivers import devices as devices_of
from launch.doctor.facts import GIB
from launch.doctor.machine import memory_here
from launch.plan.job import metrics_in
from launch.recipes import load
from launch.smoke.setting import LAUNCH, Setting
from launch.system.child import Ended

DATA_S = 300
TRAIN_S = {"cpu": 1200, "cuda": 660, "npu": 660}
TRAIN, NAN = "train", "train.nan"
DECIDES = "verl trains with int8 rollouts, and every weight that it sent is proved to have arrived"
REFUSES = "a NaN that the trainer sends ends the run, with its parameter's name"
RECIPE = "addition-int8"
PLANTED = "ascend_quant.smoke.planted"
NOT_FINITE = re.compile(rf"{re.escape(SPOILT)}: \d+ of .{{0,80}}NaN or Inf")
LARGEST_K3 = 1e-3  # maximum mismatch KL of a step


def train(setting: Setting) -> list[Result]:
    """Train the steps if memory suffices, then the step with a NaN."""
    memory, devices = load(RECIPE).memory, devices_of(setting.devices)
    if lacking := lack(memory.host, memory.device, memory_here()[1], devices):
        why = f"{lacking}; with more memory: ./run.sh smoke --only train"
        return [Result(name, what, NOT_APPLICABLE, reason=why) for name, what in ((TRAIN, DECIDES), (NAN, REFUSES))]
    ended, metrics = trained(setting)
    try:
        found = judged(setting, ended, metrics)
    except LaunchError as error:
        found = Result(TRAIN, DECIDES, FAILED, ended.seconds, str(error), broke=True)
    return [found, refused(setting, ended, found)]


def lack(host_gib: int, device_gib: int, available: int, devices: Devices) -> str:
    """Return what memory is missing, of the host (available bytes) or of the first device; "" if none."""
    if available < host_gib * GIB:
        return f"training needs {host_gib} GiB of memory, but {available / GIB:.1f} are available"
    if devices.tool and not devices.found:
        return f"there is no device: {devices.problem}"
    if devices.found:
        first = devices.found[0]
        if first.total_mib is None or first.used_mib is None:
            return f"{devices.tool} does not show how much memory device {first.number} has: {first.health}"
        free = (first.total_mib - first.used_mib) / 1024
        if free < device_gib:
            return f"training needs {device_gib} GiB of device {first.number}, but {free:.1f} are free"
    return ""


def trained(setting: Setting) -> tuple[Ended, Path]:
    """Train the recipe on this machine; return how it ended, and the file of its metrics."""
    data, out = str(setting.folder / "data"), setting.folder / "out"
    made = setting.run([*LAUNCH, "data", "addition", "--to", data], "data", DATA_S)
    if made.code != 0:
        return made, out
    ended = setting.run(command_of(setting, data, out), TRAIN, TRAIN_S[setting.device])
    return ended, metrics_in(out) or out / "metrics"


def command_of(setting: Setting, data: str, out: Path) -> list[str]:
    """Return the command that trains the recipe on one device, with one more step whose weights contain a NaN.

    Engines on devices sleep and capture graphs, as in the recipes for real models.
    """
    libraries = [PLANTED] if setting.devices == "npu" else [LIBRARY, PLANTED]
    engines = {"enforce_eager": False, "free_cache_engine": True, "enable_sleep_mode": True}
    changes = {
        "stack": setting.stack,
        "trainer.nnodes": 1,
        "trainer.device": setting.device,
        "trainer.total_training_steps": setting.steps + 1,
        "trainer.save_freq": -1,
        "actor_rollout_ref.model.external_lib": json.dumps(libraries),
    }
    if setting.devices != "none":
        changes |= {f"{ROLLOUT}.{name}": str(value).lower() for name, value in engines.items()}
    command = [*LAUNCH, "train", RECIPE, "--data", data, "--out", str(out)]
    return [*command, "--", *(f"{key}={value}" for key, value in changes.items())]


def judged(setting: Setting, ended: Ended, metrics: Path) -> Result:
    """Judge the metrics that verl logged.

    Raises:
        LaunchError: a step lacks one of the demo's metrics.
    """
    lines = read_lines(metrics)[: setting.steps]
    steps, receipts = [step_record(line) for line in lines], [receipt(line) for line in lines]
    problems = []
    if bad := sorted({name for one in steps for name, value in one.items() if not isfinite(value)}):
        problems.append(f"not finite: {', '.join(bad)}")
    if unproved := [number for number, one in enumerate(receipts, start=1) if not one.get("verified")]:
        problems.append(f"no arrival was verified in step {', '.join(map(str, unproved))}")
    values: dict = {"steps": len(steps)}
    if steps:
        values["mismatch KL"] = largest = max(one["k3_kl"] for one in steps)
        values["weight sync, ms"] = 1000 * median(one["refit_seconds"] for one in steps)
        values |= {"metrics": steps, "receipts": receipts}
        if not largest < LARGEST_K3:
            problems.append(
                f"the mismatch KL is {largest:.3g}, but must be at most {LARGEST_K3}: sampler and trainer differ"
            )
    broke = not problems and len(steps) != setting.steps
    if len(steps) != setting.steps:
        problems.append(f"{len(steps)} of {setting.steps} steps were logged; {ended.why()}")
    return Result(TRAIN, DECIDES, FAILED if problems else OK, ended.seconds, "; ".join(problems), values, broke)


def refused(setting: Setting, ended: Ended, trained: Result) -> Result:
    """Judge the effect of the last step's NaN."""
    if trained.values.get("steps") != setting.steps:
        return Result(NAN, REFUSES, FAILED, 0.0, "training did not get that far", broke=True)
    said = NOT_FINITE.search(ended.log.read_text(errors="replace"))
    values = {"ended with": ended.code, "said": said[0] if said else ""}
    if ended.code == 0:
        return Result(NAN, REFUSES, FAILED, 0.0, "the run went on with a NaN", values)
    why = "" if said else ended.why()
    return Result(NAN, REFUSES, OK if said else FAILED, 0.0, why, values, broke=not said)
