"""The process of one task (see tasks.py): python -m benchmarks.child TASK.json RESULT.json."""

import json
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.tasks import Task


def main(asked: str, answer: str) -> None:
    """Carry out the task of one file, write the result to another, whole or not at all."""
    task = Task.of(json.loads(Path(asked).read_text()))
    result = import_module(f"benchmarks.{task.part}").run(task)
    partial = Path(answer).with_suffix(".partial")
    partial.write_text(json.dumps(result))
    partial.rename(answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
