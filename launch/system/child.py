"""Run a command in a process of its own, with a time limit.

When it returns, all processes that the command started have ended.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launch import with_root
from launch.environment.resolve import environment
from launch.system.cause import of_log, split
from launch.system.processes import ProcessTree

POLL_SECONDS = 0.2
LOOK_EVERY = 20  # polls: going through all processes costs time that they need
SHOWN, LONGEST = 5, 300  # lines of a log, and characters of each
OFFLINE = {  # nothing here may fetch a model or phone home, unless the caller says so
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Ended:
    """Result of a command: how it ended.

    Attributes:
        code: None where the time limit ended it, negative where a signal did.
        log: the file with all that it said.
    """

    code: int | None
    seconds: float
    log: Path

    def how(self) -> str:
        """Return in words how the command ended."""
        if self.code is None:
            return f"was ended after {self.seconds:.0f} s"
        return f"was killed by signal {-self.code}" if self.code < 0 else f"ended with {self.code}"

    def why(self) -> str:
        """Return how it failed, with its last errors, in one line."""
        return f"{self.log.stem} {self.how()}; {' '.join(last_errors(self.log).split())}"


def last_errors(log: Path) -> str:
    """Return the cause with the place where it stands, or the last lines and the log when none of them is an error."""
    if cause := of_log(log):
        return "\n".join(["the log says:", *cause.lines()])
    lines = [split(line)[1].strip() for line in log.read_text(errors="replace").splitlines()]
    shown = [line[:LONGEST] for line in lines if line][-SHOWN:]
    return "\n".join(["the log says:", *(f"  {line}" for line in shown), f"the whole log: {log}"])


def run(
    command: Sequence[str],
    folder: Path,
    name: str,
    limit: float,
    stack: str,
    at_each_look: Callable[[], None] = lambda: None,
    **variables: str,
) -> Ended:
    """Run a command in a folder, with the environment of a stack; all that it says goes into NAME.log there.

    Args:
        limit: seconds.
        at_each_look: called as long as it runs, five times a second, and once when it has ended; what it raises ends
            the command.
        variables: more of the environment.
    """
    log, begun = folder / f"{name}.log", time.monotonic()
    whole = environment(stack, {**OFFLINE, **os.environ, "PYTHONPATH": with_root(os.environ), **variables})
    with log.open("wb") as said:
        child = subprocess.Popen(
            command,
            cwd=folder,
            env=whole,
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=subprocess.STDOUT,
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
    return Ended(code, round(time.monotonic() - begun, 1), log)
