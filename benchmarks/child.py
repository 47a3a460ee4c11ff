"""The process of one task (see process.py): it carries the task out, and writes the result to a file."""

import json
import os
from importlib import import_module
from pathlib import Path

from benchmarks.tasks import Task


def main(task: Task, answer: Path, log: Path) -> None:
    """Carry out a task; the result is written whole or not at all, what is printed goes to `log`."""
    os.setpgrp()  # ended together with what it starts
    with log.open("wb") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    result = import_module(f"benchmarks.{task.part}").run(task)
    partial = answer.with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(answer)
