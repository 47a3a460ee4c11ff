"""Parts operators, refit and generate: the device's kernels beside the oracle, and a real engine beside a fresh one."""

from typing import Any

from launch.root import ROOT
from launch.smoke.child import Setting, as_json, ascend_quant, python, run
from launch.smoke.result import FAILED, Result, judged

KERNELS_SECONDS, NPU_SECONDS, MODELS_SECONDS, ENGINE_SECONDS = 300, 1800, 300, 900
NPU_GROUPS = ("environment", "arithmetic", "layout", "quantize", "products", "experts", "graphs")  # all but speeds
MEMORY = "0.2"  # of a device: the model has 5 M parameters
NAMES = ("refit", "generate")


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
    command = python("-m", "npu_smoke", "--json", str(file), "--only", *NPU_GROUPS)
    ended = run(setting, "operators", command, NPU_SECONDS, {"PYTHONPATH": folders})
    found = as_json(file)
    if found is None or ended.code is None:
        return Result("operators", FAILED, ended.seconds, reason=ended.why(), figures=found or {})
    summary = found["summary"]
    errors = {one["name"]: one["error"] for one in found["checks"]}
    problems = [f"{name}: {errors[name]}" for name in summary["needed and failed"]]
    if ended.code and not problems:
        problems = [ended.why()]
    short = ", ".join(f"{summary[status]} {status}" for status in ("passed", "failed", "not possible"))
    return judged("operators", problems, ended.seconds, short, found)


def engine(setting: Setting) -> list[Result]:
    """A refit of a vLLM engine, and what it generates then."""
    made = run(setting, "models", python("-m", "launch.smoke.models", str(setting.folder)), MODELS_SECONDS)
    if made.code != 0:
        return [Result(name, FAILED, made.seconds, reason=made.why()) for name in NAMES]
    file = setting.folder / "engine.json"
    checkpoints = [str(setting.folder / name) for name in ("start", "then")]
    command = ascend_quant("check-engine", *checkpoints, "--gpu-memory-utilization", MEMORY, "--json", str(file))
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
