"""A 7B trained on eight NPUs with BF16 rollouts, then with int8: without the twin no time of a step says anything."""

from pathlib import Path
from statistics import median
from typing import Any

from ascend_quant.smoke.results import FAILED, NOT_APPLICABLE, OK, Result
from launch import LaunchError
from launch.demo.report import pick, receipt
from launch.demo.training import read_lines
from launch.doctor.drivers import devices as devices_of
from launch.smoke.setting import LAUNCH, Setting

RECIPES = {"twins.bf16": "qwen2.5-7b-bf16-first-a2", "twins.int8": "qwen2.5-7b-int8-first-a2"}
DEVICES, STEPS, SECONDS = 8, 5, 7200
DECIDES = "what a step of Qwen2.5-7B takes on eight NPUs, and its rollout, weight sync and update"
MEASURED = {"step, s": "step", "rollout, s": "gen", "weight sync, s": "update_weights", "update, s": "update_actor"}


def twin(setting: Setting, name: str) -> Result:
    """Train a 7B model and return the medians of all steps but the first, which compiles."""
    there = len(devices_of(setting.devices).found)
    if there < DEVICES or not (setting.model and setting.data):
        why = f"{DEVICES} devices, --model and --data are needed; {there} devices are there"
        return Result(name, DECIDES, NOT_APPLICABLE, reason=why)
    out = setting.folder / name
    ended = setting.run(command_of(setting, name, out), name, SECONDS)
    lines = read_lines(next(out.glob("metrics-*/**/*.jsonl"), out / "metrics"))
    values: dict[str, Any] = {"steps": len(lines)}
    if ended.code != 0 or len(lines) < STEPS:
        why = f"{len(lines)} of {STEPS} steps were logged; {ended.why()}"
        return Result(name, DECIDES, FAILED, ended.seconds, why, values, broke=True)
    try:
        steps = [pick(line, {name: f"timing_s/{timed}" for name, timed in MEASURED.items()}) for line in lines[1:]]
    except LaunchError as why:
        return Result(name, DECIDES, FAILED, ended.seconds, str(why), values, broke=True)
    values |= {measured: median(step[measured] for step in steps) for measured in MEASURED}
    receipts = [receipt(line) for line in lines]
    unproved = name == "twins.int8" and not all(one.get("verified") for one in receipts)
    why = "in a step nothing was proved to have arrived" if unproved else ""
    return Result(name, DECIDES, FAILED if unproved else OK, ended.seconds, why, values | {"receipts": receipts})


def command_of(setting: Setting, name: str, out: Path) -> list[str]:
    """Return the command that trains the twin on this machine."""
    places = {"--model": setting.model, "--data": setting.data, "--out": out}
    timing = {"total_training_steps": STEPS, "save_freq": -1, "test_freq": -1}
    changes = {"stack": setting.stack} | {f"verl.trainer.{key}": value for key, value in timing.items()}
    command = [*LAUNCH, "train", RECIPES[name]]
    command += [word for option, place in places.items() for word in (option, str(place))]
    return command + [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
