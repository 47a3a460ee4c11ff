"""The job on the head: submitted through Ray's job API with a working directory, its state asked, its log followed."""

import shlex
import sys
import time
from pathlib import Path
from typing import Any

from launch.nodes.ray_node import client
from launch.plan.fields import NodePlan

STOP_SECONDS = 8
STARTED = "ASCEND_QUANT_STARTED"  # when Ray's head was started, and when the job was submitted: for start_up/* metrics
LONGEST_MESSAGE = 2000


class RunningJob:
    """One submitted job.

    Args:
        began: when this host began with its part of the run, in seconds since the epoch.
    """

    def __init__(self, dashboard: str, plan: NodePlan, began: float) -> None:
        temp_dir, job = Path(plan.temp_dir), plan.job
        folder = temp_dir / "job"
        for name, text in {".run": plan.run, **job.files}.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        self.id = plan.run
        self.client = client(dashboard)
        if self.id not in {known.submission_id for known in self.client.list_jobs()}:  # an answer may have been lost
            self.client.submit_job(
                submission_id=self.id,
                entrypoint=shlex.join([sys.executable, *job.entrypoint]),
                runtime_env={
                    "working_dir": str(folder),
                    "env_vars": {**job.environment, STARTED: f"{began:.3f},{time.time():.3f}"},
                },
            )
        # Ray documents this name. The driver runs on the head, so its log needs no network.
        self.log = temp_dir / "session_latest" / "logs" / f"job-driver-{self.id}.log"

    def state(self) -> tuple[str, bool, str]:
        """Its status, whether that is its last one, and what Ray says about it."""
        info: Any = self.client.get_job_info(self.id)
        return info.status.value, info.status.is_terminal(), (info.message or "")[-LONGEST_MESSAGE:]

    def stop(self) -> None:
        """Ask the driver to end, and wait a little: its logger may have something to write."""
        self.client.stop_job(self.id)
        deadline = time.monotonic() + STOP_SECONDS
        while time.monotonic() < deadline and not self.state()[1]:
            time.sleep(0.2)


class Tail:
    """The new whole lines of a growing file."""

    def __init__(self, path: Path) -> None:
        self.path, self.offset, self.rest = path, 0, b""

    def lines(self, last: bool = False) -> list[str]:
        """The lines since the last look; with `last` also one that has no end yet."""
        if not self.path.exists():
            return []
        with self.path.open("rb") as file:
            file.seek(self.offset)
            new = file.read()
        self.offset += len(new)
        *whole, self.rest = (self.rest + new).replace(b"\r", b"\n").split(b"\n")
        if last:
            whole, self.rest = [*whole, self.rest], b""
        return [line.decode(errors="replace") for line in whole if line]
