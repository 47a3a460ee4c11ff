"""A trainer's process that is killed in the middle of a training is the cause that the last lines name."""

import threading
import time
from pathlib import Path

import psutil
import trainings

from launch.system.processes import MARK, mark, of_run

RECIPE = "qwen2.5-7b-int8-gsm8k-h100"
STEPS = 200  # more than there is time for
FIRST_STEP = "step:1 - "
LAST_LINES = 5


class Killer(threading.Thread):
    """Kills the process that trains once the first step is whole.

    Attributes:
        pid: whom it has killed; None as long as it has not.
    """

    def __init__(self, logs: Path) -> None:
        super().__init__(daemon=True)
        self.logs, self.pid = logs, None

    def run(self) -> None:
        while not any(FIRST_STEP in log.read_text(errors="replace") for log in self.logs.glob("*.log")):
            time.sleep(1)
        victim = next(process for process in of_run(own_run()) if process.cmdline()[0].startswith("ray::WorkerDict"))
        self.pid = victim.pid
        victim.kill()


def own_run() -> str:
    """The id of the run that this process has started; others may train on this machine."""
    return next(filter(None, (mark(process) for process in psutil.Process().children(recursive=True))))


def test_a_killed_trainer_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv(MARK, raising=False)
    trainings.write_model("qwen2", tmp_path / "qwen2")
    killer = Killer(tmp_path / "logs")
    killer.start()
    outcome = trainings.train(RECIPE, tmp_path, tmp_path / "logs", 1, STEPS)
    assert killer.pid is not None, outcome.error
    lines = Path(tmp_path, "logs", outcome.result["log"]).read_text().strip().splitlines()[-LAST_LINES:]
    assert any("Killed" in line or "ProcessDied" in line for line in lines), lines
    assert any(f"pid {killer.pid}" in line for line in lines), lines
