"""runs/<run>/run.json: what was started where, so that `stop` can end it from another terminal or after a crash.

No secrets are in it: no environment, no token.
"""

import json
import os
import socket
from pathlib import Path
from typing import Any

import psutil

from launch.errors import LaunchError
from launch.plan.fields import Plan

RUNS = Path("runs")
RUNNING = "running"


class Record:
    """The record of one run."""

    def __init__(self, folder: Path, data: dict[str, Any]) -> None:
        self.folder, self.data = folder, data

    @classmethod
    def create(cls, plan: Plan, runs: Path = RUNS) -> "Record":
        """A new record of a run that starts now, controlled by this process."""
        this = psutil.Process()
        hosts = [
            {
                "address": host.address,
                "ssh": plan.inventory.ssh_of(host).model_dump(exclude_none=True),
                "local": plan.local[index],
                "start": plan.start[index],
                "container": plan.containers[index],
            }
            for index, host in enumerate(plan.inventory.hosts)
        ]
        control = {"host": socket.gethostname(), "pid": this.pid, "started": this.create_time()}
        data = {"run": plan.run, "recipe": plan.recipe, "state": RUNNING, "control": control, "hosts": hosts}
        record = cls(runs / plan.run, data)
        record.folder.mkdir(parents=True, exist_ok=True)
        record.save()
        return record

    @classmethod
    def load(cls, file: Path) -> "Record":
        """The record in a file."""
        return cls(file.parent, json.loads(file.read_text()))

    def save(self) -> None:
        """Whole or not at all: `stop` may read it at any time."""
        new = self.folder / "run.json.new"
        new.write_text(json.dumps(self.data, indent=1))
        os.replace(new, self.folder / "run.json")

    def change(self, **values: Any) -> None:
        """Set values and save."""
        self.data.update(values)
        self.save()

    def started(self, index: int, pid: int, facts: dict[str, Any]) -> None:
        """What runs on a host: the process id of its Ray there."""
        self.data["hosts"][index] |= {"name": facts["name"], "ray": pid}
        self.save()

    def control(self) -> psutil.Process | None:
        """The process that controls the run, if it runs on this machine: same id and same start time."""
        told = self.data["control"]
        try:
            process = psutil.Process(told["pid"])
            same = abs(process.create_time() - told["started"]) < 1 and told["host"] == socket.gethostname()
        except psutil.NoSuchProcess:
            return None
        return process if same else None


def find(run: str | None, runs: Path = RUNS) -> Record:
    """The record of a run; without a name, that of the only one that has not ended.

    Raises:
        LaunchError: there is no such run, or several have not ended.
    """
    files = sorted(runs.glob("*/run.json"))
    if run is not None:
        file = runs / run / "run.json"
        if file not in files:
            known = ", ".join(file.parent.name for file in files) or "none"
            raise LaunchError(f"no run {run!r} in {runs.resolve()}; there is {known}")
        return Record.load(file)
    open_ones = [record for record in map(Record.load, files) if record.data["state"] == RUNNING]
    if len(open_ones) != 1:
        names = ", ".join(record.data["run"] for record in open_ones)
        said = f"several runs have not ended: {names}. Say which: ./run.sh stop RUN" if names else "no run to stop"
        raise LaunchError(f"{said} (looked in {runs.resolve()})")
    return open_ones[0]
