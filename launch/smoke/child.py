"""A command in a process of its own, with a time limit, and how it ended.

Whatever the process has started has ended when it returns.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launch.demo.metrics import last_errors
from launch.environment import environment
from launch.processes import ProcessTree
from launch.root import with_root

DEVICES = {"none": "cpu", "npu": "npu", "gpu": "cuda"}  # of stacks, as torch calls them
POLL_SECONDS = 0.2
LOOK_EVERY = 20  # polls: going through all processes costs time that they need
OFFLINE = {  # nothing here may fetch a model or phone home, unless the caller says so
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "TOKENIZERS_PARALLELISM": "false",
}


@dataclass(frozen=True)
class Setting:
    """What all commands share.

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


@dataclass(frozen=True)
class Ended:
    """How a command ended.

    Attributes:
        code: None where the time limit ended it, negative where a signal did.
        output: the file with its stdout.
        log: the file with its stderr, and its stdout too unless that was wanted apart.
    """

    code: int | None
    seconds: float
    output: Path
    log: Path

    def why(self) -> str:
        """In what way it failed, with its last errors."""
        if self.code == 0 and self.output != self.log and self.output.is_file():
            return f"{self.log.stem} ended with 0, but its stdout is no JSON: {self.output.read_text()[:100]!r}"
        how = f"was ended after {self.seconds:.0f} s" if self.code is None else f"ended with {self.code}"
        if self.code is not None and self.code < 0:
            how = f"was killed by signal {-self.code}"
        said = " ".join(last_errors(self.log).split())
        return f"{self.log.stem} {how}; {said}"

    def json(self) -> dict[str, Any] | None:
        """Its stdout; None where that is no JSON, because it ended before it could answer."""
        return as_json(self.output)


def as_json(file: Path) -> dict[str, Any] | None:
    """The contents of a file; None where it is not there, or not whole."""
    try:
        return json.loads(file.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def python(*arguments: str) -> list[str]:
    """A command of this interpreter."""
    return [sys.executable, *arguments]


def run(
    setting: Setting,
    name: str,
    command: Sequence[str],
    limit: float,
    apart: bool = False,
    at_each_look: Callable[[], None] = lambda: None,
) -> Ended:
    """Run a command in the setting's folder, with the environment of its stack.

    Args:
        name: of its log.
        limit: seconds.
        apart: whether stdout goes to a file of its own, for JSON.
        at_each_look: called as long as it runs, five times a second, and once when it has ended.
    """
    log = setting.folder / f"{name}.log"
    output = log.with_suffix(".out") if apart else log
    whole = environment(setting.stack, {**OFFLINE, **os.environ, "PYTHONPATH": with_root(os.environ)})
    begun = time.monotonic()
    with log.open("wb") as errors, output.open("ab") as said:
        child = subprocess.Popen(
            command,
            cwd=setting.folder,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=said if apart else errors,
            stderr=errors,
            start_new_session=True,
        )
    tree, polls = ProcessTree(child.pid), 0
    try:
        while (code := child.poll()) is None and time.monotonic() - begun < limit:
            if polls % LOOK_EVERY == 0:
                tree.look()
            polls += 1
            at_each_look()
            time.sleep(POLL_SECONDS)
        at_each_look()
    finally:
        tree.end()
        child.wait()
    return Ended(code, round(time.monotonic() - begun, 1), output, log)
