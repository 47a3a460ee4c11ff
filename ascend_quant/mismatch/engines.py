"""One vLLM engine in a process of its own (child.py), so that each has the whole device, one after the other."""

import json
import logging
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

LAST_WORDS = 8  # lines
ERRORS = 5
ERROR = re.compile(r"\b[\w.]*(Error|Exception): .+")
POLL_SECONDS = 0.2
GRACE_SECONDS = 10

OnProgress = Callable[[str, int, int], None]  # what is going on, how much of it is done, of how much


class EngineFailed(RuntimeError):
    """An engine's process ended without a result; the message holds its last words."""


@dataclass(frozen=True)
class Task:
    """What an engine does: it samples, and scores what others have sampled.

    Attributes:
        engine: vLLM's options.
        prompts: token ids to sample from.
        sampling: of vllm.SamplingParams.
        sequences: to be scored, by the name of the policy that sampled them: each with the token ids `prompt` and
            `response`.
        watched: the scheme whose layer errors are wanted while the first of them are scored; None for none.
        every: how many tokens pass for one that is looked at.
    """

    engine: dict[str, Any]
    prompts: list[list[int]]
    sampling: dict[str, Any]
    sequences: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    watched: str | None = None
    every: int = 1


def run(task: Task, on_progress: OnProgress) -> dict[str, Any]:
    """Carry out a task in a new process; what comes back is `child.work`'s.

    Raises:
        EngineFailed: with its last words; the whole log is kept.
    """
    folder = Path(tempfile.mkdtemp(prefix="ascend-quant-mismatch-"))
    paths = {name: folder / name for name in ("task.json", "result.json", "progress", "log")}
    paths["task.json"].write_text(json.dumps(asdict(task)))
    paths["progress"].touch()
    command = [sys.executable, "-m", "ascend_quant.mismatch.child", str(folder)]
    on_progress("starts", 0, 1)
    with paths["log"].open("w") as log:
        options = {"stdout": log, "stderr": subprocess.STDOUT, "env": _environment(), "start_new_session": True}
        child = subprocess.Popen(command, **options)
        try:
            _follow(child, paths["progress"], on_progress)
        finally:
            _end(child)
    if not paths["result.json"].exists():
        how = f"was killed by signal {-child.returncode}" if child.returncode < 0 else f"ended with {child.returncode}"
        words = last_words(paths["log"].read_text(errors="replace"))
        raise EngineFailed(f"the engine {how}; its last words:\n{words}\nThe whole log: {paths['log']}")
    result = json.loads(paths["result.json"].read_text())
    for path in paths.values():
        path.unlink()
    folder.rmdir()
    return result


def last_words(log: str) -> str:
    """The last lines of a log, after its errors, each once: vLLM's processes tell the cause first, far above."""
    lines = [line for line in log.splitlines() if line.strip()]
    errors = dict.fromkeys(match[0] for line in lines if (match := ERROR.search(line)))
    return "\n".join([*list(errors)[-ERRORS:], "...", *lines[-LAST_WORDS:]])


def _environment() -> dict[str, str]:
    """Without FlashRL's variables: they would turn a BF16 engine into another one."""
    if found := [name for name in os.environ if name.startswith("FLASHRL_")]:
        logger.warning("the engines do not follow %s: they have the options of this command", ", ".join(found))
    return {name: value for name, value in os.environ.items() if name not in found}


def _follow(child: subprocess.Popen, progress: Path, on_progress: OnProgress) -> None:
    with progress.open() as lines:
        rest, ended = "", False
        while not ended:
            ended = child.poll() is not None
            *whole, rest = (rest + lines.read()).split("\n")
            for line in whole:
                on_progress(*json.loads(line))
            if not ended:
                time.sleep(POLL_SECONDS)


def _end(child: subprocess.Popen) -> None:
    """Leave nothing of the child's session behind, vLLM's own processes included."""
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(child.pid, sign)
        with suppress(subprocess.TimeoutExpired):
            child.wait(GRACE_SECONDS)
