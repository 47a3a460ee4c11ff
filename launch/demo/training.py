"""One arm: verl's GRPO in processes of its own, watched through the metrics it writes.

verl may hang instead of failing when one of its workers dies, so a run without a new step for too long is ended.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from launch.demo import DemoError
from launch.demo.caches import settings_of
from launch.demo.metrics import last_errors, read_lines
from launch.demo.recipe import HYBRID, Choices, overrides, write_flashrl_config
from launch.environment import environment
from launch.processes import ProcessTree, own_memory_bytes

FIRST_STEP_SECONDS = 600  # includes starting Ray, verl and vLLM: about 80 s on two idle cores
NEXT_STEP_SECONDS = 180
POLL_SECONDS = 0.5
MEMORY_EVERY = 8  # polls: adding up the memory of 30 processes costs time they need
TURN = "ASCEND_QUANT_TURN"  # read by integrations/verl/start_up.py: a file whose lock must be free before step 1
WAITED = "start_up/turn"


@dataclass(frozen=True)
class Watched:
    """What was seen from outside: the most memory of all processes, in bytes, and the seconds before the first step.

    Memory is that of arms beside it too; seconds that it waited for one of them are left out.
    """

    peak_memory: int
    start_seconds: float


class Training:
    """A training that runs, with what it has written; whoever makes one ends it in any case.

    Attributes:
        arm: which.

    Args:
        waits: whether it stands still before its first step until `go` is called, or this process has ended.
        changes: keys of verl that are to be otherwise than in the demo.
    """

    def __init__(
        self,
        choices: Choices,
        arm: str,
        out: Path,
        waits: bool = False,
        changes: Mapping[str, Any] = MappingProxyType({}),
    ):
        self.arm, folder = arm, out / arm
        folder.mkdir(parents=True, exist_ok=True)
        metrics = folder / "metrics.jsonl"
        metrics.unlink(missing_ok=True)  # an earlier run's steps are not this one's
        with ExitStack() as made:
            private = Path(tempfile.mkdtemp(prefix="aq-"))  # Ray's sockets need a short path, and Ray opens its folder
            made.callback(shutil.rmtree, private, ignore_errors=True)
            variables = environment(choices.setup.stack, os.environ) | {"VERL_FILE_LOGGER_PATH": str(metrics)}
            command = [sys.executable, "-m", "ascend_quant.integrations.verl.main_ppo"]
            command += overrides(choices, arm, out, private / "ray", settings_of(choices, arm) | dict(changes))
            if arm == HYBRID:
                write_flashrl_config(folder / "flashrl.yaml")
                variables["FLASHRL_CONFIG"] = str(folder / "flashrl.yaml")
            self._turn = made.enter_context((private / "turn").open("w"))
            if waits:
                fcntl.flock(self._turn, fcntl.LOCK_EX)
                variables[TURN] = str(private / "turn")
            verl = started(command, folder, variables)
            self._watch = Watch(verl, ProcessTree(verl.pid), choices.steps, metrics, folder / "verl.log", waits)
            made.callback(self._watch.end)
            self._made = made.pop_all()

    def end(self) -> None:
        """End what still runs of it."""
        self._made.close()

    def go(self) -> None:
        """Let it train."""
        self._turn.close()  # and its lock is free
        self._watch.waits = False

    def look(self, beside: int = 0) -> int:
        """How many steps are done now, see `Watch.look`."""
        return self._watch.look(beside)

    @property
    def memory(self) -> int:
        """Bytes of its processes, when last looked at."""
        return self._watch.memory

    @property
    def watched(self) -> Watched | None:
        """Once verl has ended as it should."""
        return self._watch.watched


def started(command: list[str], folder: Path, variables: Mapping[str, str]) -> subprocess.Popen:
    """verl's process, in a session of its own; what it says goes into verl.log in its folder."""
    with (folder / "verl.log").open("wb") as output:
        return subprocess.Popen(
            command, cwd=folder, env=variables, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


class Watch:
    """Follows the metrics of a verl process, one look at a time.

    Attributes:
        waits: whether no step is to be expected yet.
        memory: bytes of its processes, when last looked at.
        watched: what was seen, once verl has ended as it should.
    """

    def __init__(
        self, verl: subprocess.Popen, tree: ProcessTree, steps: int, metrics: Path, log: Path, waits: bool = False
    ):
        self._verl, self._tree, self._steps, self._metrics, self._log = verl, tree, steps, metrics, log
        self._begun = self._last_news = time.monotonic()
        self._peak, self._done, self._polls, self._start = 0, 0, 0, 0.0
        self.waits, self.memory = waits, 0
        self.watched: Watched | None = None

    def look(self, beside: int = 0) -> int:
        """How many steps are done.

        Args:
            beside: bytes of others' processes that count as this one's.

        Raises:
            DemoError: verl has failed, stands still, or has ended early.
        """
        ended = self._verl.poll() is not None  # asked before the metrics are read: the last step is not missed
        if self._polls % MEMORY_EVERY == 0:
            self._tree.look()
            self.memory = self._tree.memory_bytes()
            self._peak = max(self._peak, self.memory + beside + own_memory_bytes())
        self._polls += 1
        now, lines = time.monotonic(), read_lines(self._metrics)
        if self.waits or len(lines) > self._done:
            self._last_news = now
        if lines and not self._done:
            spent = (line["data"]["timing_s/step"] + line["data"].get(WAITED, 0.0) for line in lines)
            self._start = now - self._begun - sum(spent)
        self._done = len(lines)
        if ended and (self._verl.returncode or self._done < self._steps):
            steps = f"{self._done} of {self._steps} steps"
            raise DemoError(f"verl ended with code {self._verl.returncode} after {steps}; {last_errors(self._log)}")
        allowed = NEXT_STEP_SECONDS if self._done else FIRST_STEP_SECONDS
        if not ended and now - self._last_news > allowed:
            steps = f"{self._done} of {self._steps}"
            raise DemoError(f"no step after {steps} for {allowed} s; {last_errors(self._log)}")
        if ended:
            self.watched = Watched(self._peak, self._start)
        return self._done

    def end(self) -> None:
        """End what still runs."""
        self._tree.end()
        self._verl.wait()


def train_arm(
    choices: Choices,
    arm: str,
    out: Path,
    on_steps: Callable[[int], None],
    changes: Mapping[str, Any] = MappingProxyType({}),
) -> Watched:
    """Run one arm to its last step; `changes` as above."""
    training = Training(choices, arm, out, changes=changes)
    try:
        while training.watched is None:
            on_steps(training.look())
            time.sleep(POLL_SECONDS)
    finally:
        training.end()
    return training.watched
