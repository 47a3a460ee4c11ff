"""One arm: verl's GRPO in processes of its own, watched through the metrics it writes.

verl may hang instead of failing when one of its workers dies, so a run without a new step for too long is ended.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launch import door
from launch.demo import DemoError
from launch.demo.metrics import last_errors, read_lines
from launch.demo.recipe import HYBRID, Choices, overrides, write_flashrl_config
from launch.environment import environment
from launch.errors import LaunchError
from launch.processes import ProcessTree, own_memory_bytes

FIRST_STEP_SECONDS = 600  # includes starting Ray, verl and vLLM: about 80 s on two idle cores
NEXT_STEP_SECONDS = 180
POLL_SECONDS = 0.5
MEMORY_EVERY = 8  # polls: adding up the memory of 30 processes costs time they need


@dataclass(frozen=True)
class Watched:
    """What was seen from outside: the most memory of all processes, in bytes, and the seconds before the first step."""

    peak_memory: int
    start_seconds: float


def train_arm(
    choices: Choices,
    arm: str,
    out: Path,
    on_steps: Callable[[int], None],
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Watched:
    """Run one arm to its last step; `changes` are keys of verl that are to be otherwise than in the demo."""
    folder = out / arm
    folder.mkdir(parents=True, exist_ok=True)
    log, metrics = folder / "verl.log", folder / "metrics.jsonl"
    metrics.unlink(missing_ok=True)  # an earlier run's steps are not this one's
    private = Path(tempfile.mkdtemp(prefix="aq-"))  # Ray's sockets need a short path, and Ray opens its own folder
    variables = environment(choices.setup.stack, os.environ) | {"VERL_FILE_LOGGER_PATH": str(metrics)}
    try:
        variables = door.preloaded(door.build(private, []), variables)
    except LaunchError as error:
        shutil.rmtree(private, ignore_errors=True)
        raise DemoError(str(error)) from error
    command = [sys.executable, "-m", "ascend_quant.integrations.verl.main_ppo"]
    command += overrides(choices, arm, out, private / "ray", changes)
    if arm == HYBRID:
        write_flashrl_config(folder / "flashrl.yaml")
        variables["FLASHRL_CONFIG"] = str(folder / "flashrl.yaml")
    with log.open("wb") as output:
        if shown := door.shown():
            output.write(f"{shown}\n".encode())
            output.flush()
        verl = subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    tree = ProcessTree(verl.pid)
    try:
        return watch(verl, tree, choices.steps, metrics, log, on_steps)
    finally:
        tree.end()
        verl.wait()
        shutil.rmtree(private, ignore_errors=True)


def watch(
    verl: subprocess.Popen, tree: ProcessTree, steps: int, metrics: Path, log: Path, on_steps: Callable[[int], None]
) -> Watched:
    """Follow the metrics until verl ends; raise if it fails, stalls or ends early."""
    begun = last_news = time.monotonic()
    peak, done, polls, start, ended = 0, 0, 0, 0.0, False
    while not ended:
        ended = verl.poll() is not None  # asked before the metrics are read, so that the last step is not missed
        if polls % MEMORY_EVERY == 0:
            tree.look()
            peak = max(peak, tree.memory_bytes() + own_memory_bytes())
        polls += 1
        lines = read_lines(metrics)
        if len(lines) > done:
            last_news = time.monotonic()
            if not done:
                start = last_news - begun - sum(line["data"]["timing_s/step"] for line in lines)
            done = len(lines)
            on_steps(done)
        allowed = NEXT_STEP_SECONDS if done else FIRST_STEP_SECONDS
        if time.monotonic() - last_news > allowed:
            raise DemoError(f"no step after {done} of {steps} for {allowed} s; {last_errors(log)}")
        time.sleep(0 if ended else POLL_SECONDS)
    if verl.returncode or done < steps:
        raise DemoError(f"verl ended with code {verl.returncode} after {done} of {steps} steps; {last_errors(log)}")
    return Watched(peak, start)
