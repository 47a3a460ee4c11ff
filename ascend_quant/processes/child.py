"""Running a command in a separate process, with a time limit.

All processes that the command has started end before the call returns.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ascend_quant.processes.cause import of_log, split
from ascend_quant.processes.environment import environment
from ascend_quant.processes.tree import ProcessTree

POLL_SECONDS = 0.2
LOOK_EVERY = 20  # polls between listings of all processes, which cost CPU time
SHOWN, LONGEST = 5, 300  # lines of a log, and characters per line
OFFLINE = {  # prevents downloads and telemetry, unless the caller overrides it
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "DO_NOT_TRACK": "1",
}


@dataclass(frozen=True)
class Ended:
    """The result of a command.

    Attributes:
        code: exit code; None if the time limit ended it, negative if a signal did.
        log: file with the command's output.
    """

    code: int | None
    seconds: float
    log: Path

    def how(self) -> str:
        """Describe how the command ended."""
        if self.code is None:
            return f"was ended after {self.seconds:.0f} s"
        return f"was killed by signal {-self.code}" if self.code < 0 else f"ended with {self.code}"

    def why(self) -> str:
        """Describe how it failed, with its last errors, in one line."""
        return f"{self.log.stem} {self.how()}; {' '.join(last_errors(self.log).split())}"


def last_errors(log: Path) -> str:
    """Return the cause and its location, or the last lines and the log if none of them is an exception."""
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
    """Run a command in a folder, with the environment of a stack; its output is written to NAME.log there.

    Args:
        limit: seconds.
        at_each_look: called five times a second while the command runs, and once when it has ended; an exception from
            it ends the command.
        variables: additional environment variables.
    """
    log, begun = folder / f"{name}.log", time.monotonic()
    whole = environment(stack, {**OFFLINE, **os.environ, "PYTHONPATH": _python_path(), **variables})
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


def _python_path() -> str:
    """Return PYTHONPATH for a process in another folder, which has to find this package even if it is not installed."""
    packages = Path(__file__).parents[2]
    own = [] if packages.name in ("site-packages", "dist-packages") else [str(packages)]
    return os.pathsep.join([*own, *filter(None, [os.environ.get("PYTHONPATH")])])
