"""The parts of the smoke test, one function each (refit and generate share an engine): what each runs, and its verdict.

manifest and doctor: what is installed, what would stop a run. operators: the device's kernels beside the oracle. refit
and generate: a real engine beside a fresh one. train: a few steps of GRPO with int8 rollouts; on CPUs it is the demo
itself, elsewhere its recipe.
"""

import os
from math import isfinite
from pathlib import Path
from statistics import median
from typing import Any

from launch.demo import DemoError
from launch.demo.metrics import read_lines, receipt, step_record
from launch.doctor.devices import devices as devices_of
from launch.doctor.examination import PACKAGES
from launch.doctor.facts import GIB, Devices
from launch.doctor.machine import machine
from launch.recipes import load
from launch.root import ROOT
from launch.smoke.child import (
    FAILED,
    Ended,
    Result,
    Setting,
    as_json,
    ascend_quant,
    judged,
    not_applicable,
    python,
    run,
)
from launch.stacks import STACK_VARIABLE

MANIFEST_SECONDS, DOCTOR_SECONDS = 300, 300
LONG = ("packages", "system_packages")  # of a manifest
KERNELS_SECONDS, NPU_SECONDS, MODELS_SECONDS, ENGINE_SECONDS = 300, 1800, 300, 900
NPU_GROUPS = ("environment", "arithmetic", "layout", "quantize", "products", "experts", "graphs")  # all but speeds
MEMORY = "0.2"  # of a device: the model has 5 M parameters
NAMES = ("refit", "generate")  # both are of one engine
RECIPE = "addition-int8"  # of part train, where it is not the demo
TRAIN_SECONDS = 1200
TORCH_DEVICES = {"npu": "npu", "gpu": "cuda"}


def manifest(setting: Setting) -> list[Result]:
    """What the image is made of, in short."""
    if not os.environ.get(STACK_VARIABLE):
        return [not_applicable("manifest", f"this is no image of ours ({STACK_VARIABLE} is not set)")]
    ended = run(setting, "manifest", python("-m", "launch.manifest"), MANIFEST_SECONDS, apart=True)
    found = ended.json()
    if ended.code or found is None:
        return [Result("manifest", FAILED, ended.seconds, reason=ended.why())]
    return [judged("manifest", [], ended.seconds, _in_short(found), _figures(found))]


def _figures(found: dict[str, Any]) -> dict[str, Any]:
    """The manifest without its long lists, and the versions that a reader asks for."""
    versions = {name: found["packages"][name]["version"] for name in PACKAGES if name in found["packages"]}
    return {name: value for name, value in found.items() if name not in LONG} | {"packages": versions}


def _in_short(found: dict[str, Any]) -> str:
    return " ".join(str(found[name]) for name in ("stack", "chip", "revision") if found[name])


def doctor(setting: Setting) -> list[Result]:
    """Its findings; errors fail."""
    ended = run(setting, "doctor", python("-m", "launch", "doctor", "--json"), DOCTOR_SECONDS, apart=True)
    report = ended.json()
    if report is None:
        return [Result("doctor", FAILED, ended.seconds, reason=ended.why())]
    findings = [one for host in report["hosts"] for one in host["findings"]]
    by_level = {level: [one for one in findings if one["level"] == level] for level in ("error", "warning", "ok")}
    errors = [f"{one['check']}: {one['what']} ({one['fix']})" for one in by_level["error"]]
    short = ", ".join(f"{len(found)} {level}" for level, found in by_level.items())
    figures = {"findings": [one for one in findings if one["level"] != "ok"], "traits": report["hosts"][0]["traits"]}
    return [judged("doctor", errors, ended.seconds, short, figures)]


def operators(setting: Setting) -> list[Result]:
    """Every kernel on some shapes."""
    return [_npu_operators(setting) if setting.devices == "npu" else _kernels(setting)]


def _kernels(setting: Setting) -> Result:
    device = {"gpu": "cuda", "none": "cpu"}[setting.devices]
    command = ascend_quant("kernels", device, "--check", "--json")
    ended = run(setting, "operators", command, KERNELS_SECONDS, apart=True)
    found = ended.json()
    if found is None:
        return Result("operators", FAILED, ended.seconds, reason=ended.why())
    tried = [one for one in found["checked"] if not one["refused"]]
    problems = [f"{one['scheme']}: {problem}" for one in tried for problem in one["problems"]]
    short = f"{device}: {', '.join(one['scheme'] for one in tried)}"
    return judged("operators", problems, ended.seconds, short, found)


def _npu_operators(setting: Setting) -> Result:
    """The operators of torch_npu that we call: tests/npu_smoke."""
    file, folders = setting.folder / "npu-smoke.json", f"{ROOT}:{ROOT / 'tests'}"
    command = python("-m", "npu_smoke", "--out", str(file), "--only", *NPU_GROUPS)
    ended = run(setting, "operators", command, NPU_SECONDS, {"PYTHONPATH": folders})
    found = as_json(file)
    if found is None or ended.code is None:
        return Result("operators", FAILED, ended.seconds, reason=ended.why(), figures=found or {})
    summary = found["summary"]
    errors = {one["name"]: one["reason"] for one in found["checks"]}
    problems = [f"{name}: {errors[name]}" for name in summary["needed and failed"]]
    if ended.code and not problems:
        problems = [ended.why()]
    short = ", ".join(f"{summary[verdict]} {verdict}" for verdict in ("proved", "refuted", "missing", "fact"))
    return judged("operators", problems, ended.seconds, short, found)


def engine(setting: Setting) -> list[Result]:
    """A refit of a vLLM engine, and what it generates then."""
    made = run(setting, "models", python("-m", "launch.smoke.models", str(setting.folder)), MODELS_SECONDS)
    if made.code != 0:
        return [Result(name, FAILED, made.seconds, reason=made.why()) for name in NAMES]
    file = setting.folder / "engine.json"
    checkpoints = [str(setting.folder / name) for name in ("start", "then")]
    command = ascend_quant("check-engine", *checkpoints, "--gpu-memory-utilization", MEMORY, "--out", str(file))
    # On GPUs vLLM captures graphs, which must follow the refit; NPUs' graphs are among the operators.
    command += ["--graphs"] if setting.devices == "gpu" else []
    ended = run(setting, "engine", command, ENGINE_SECONDS, _in_one_process(setting))
    found = as_json(file)
    if found is None:
        return [Result(name, FAILED, ended.seconds, reason=ended.why()) for name in NAMES]
    return [_part(name, found) for name in NAMES]


def _in_one_process(setting: Setting) -> dict[str, str]:
    """On a CPU the engine's own processes would import vLLM twice more, on the same few cores; a device is left to
    engines of their own, which give all of it back."""
    return {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"} if setting.devices == "none" else {}


def _part(name: str, found: dict[str, Any]) -> Result:
    part = dict(found[name])
    problems, seconds = part.pop("problems"), part.pop("seconds")
    if name == "refit":
        receipt = part["receipt"]
        short = f"{receipt['tensors']} tensors, {receipt['milliseconds']:.0f} ms, digest {receipt['digest']}"
        part |= {"scheme": found["scheme"], "graphs": found["graphs"], "machine": found["machine"]}
    else:
        short = f"{part['prompts']} x {part['tokens']} tokens as of a fresh engine"
    return judged(name, problems, seconds, short, part)


def train(setting: Setting) -> list[Result]:
    """The steps, if the memory is there."""
    memory = load(RECIPE).memory
    devices = devices_of(setting.devices)
    if lacking := lack(memory.host, memory.device, machine().memory[1], devices):
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
        if first.total_mib is None or first.used_mib is None:
            return f"{devices.tool} does not say how much memory device {first.number} has: {first.health}"
        free = (first.total_mib - first.used_mib) / 1024
        if free < device_gib:
            return f"training needs {device_gib} GiB of device {first.number}, {free:.1f} are free"
    return ""


def _on_cpu(setting: Setting) -> tuple[Ended, Path]:
    out = setting.folder / "demo"
    command = python("-m", "launch", "demo", "--arms", "int8", "--steps", str(setting.steps), "--out", str(out))
    return run(setting, "train", command, TRAIN_SECONDS), out / "int8" / "metrics.jsonl"


def _on_devices(setting: Setting) -> tuple[Ended, Path]:
    """The recipe, on one device of this machine."""
    data, out = str(setting.folder / "data"), setting.folder / "out"
    made = run(setting, "data", python("-m", "launch", "data", "addition", "--to", data), TRAIN_SECONDS)
    if made.code != 0:
        return made, out
    ended = run(setting, "train", _train_command(setting, data, out), TRAIN_SECONDS)
    return ended, next(out.glob("metrics/**/*.jsonl"), out / "metrics")


def _train_command(setting: Setting, data: str, out: Path) -> list[str]:
    """What trains the recipe on one device of this machine."""
    changes = {
        "stack": setting.stack,
        "nodes": 1,
        "verl.trainer.device": TORCH_DEVICES.get(setting.devices, "cpu"),
        "verl.trainer.total_training_steps": setting.steps,
        "verl.trainer.save_freq": -1,
    }
    command = python("-m", "launch", "train", RECIPE, "--data", data, "--out", str(out))
    return command + [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


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
    return judged("train", problems, ended.seconds, _steps_in_short(steps), {"steps": steps, "receipts": receipts})


def _steps_in_short(steps: list[dict[str, Any]]) -> str:
    refit = 1000 * median(one["refit_seconds"] for one in steps)
    k3 = max(one["k3_kl"] for one in steps)
    return f"{len(steps)} steps, mismatch KL {k3:.1e}, weight sync {refit:.0f} ms"
