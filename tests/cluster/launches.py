"""Launches as a user types them, on a simulated host; and the inventory that they name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from cluster.host import PROJECT, PYTHON, Host
from cluster.keys import Keys
from cluster.running import Running

HERE = Path(__file__).parent
LONG = pytest.mark.long("launch/cluster", "launch/nodes", "launch/plan", "launch/ray_jobs", "tests/cluster")


class Launches:
    """What is launched on some hosts; all of it writes to `folder`, which is on all of them.

    Attributes:
        fields: the inventory, to be changed before a launch.
    """

    def __init__(self, folder: Path, hosts: Sequence[Host], keys: Keys) -> None:
        self.folder, self.out = folder, folder / "out"
        self.out.mkdir()
        self.stay = self.out / "STAY"  # while it is there, a job of jobs/ goes on
        self.stay.touch()
        self.fields: dict[str, Any] = {
            "stack": "cpu",
            "project": str(PROJECT),
            "python": PYTHON,
            "ssh": {"user": "root", "key": str(keys.identity)},
            "hosts": [{"address": host.address, "ssh": {"port": host.ssh_port}} for host in hosts],
            "shared": [str(folder)],
            "join_seconds": 300,  # images are built beside these tests; one whose hosts never join sets its own
        }

    @property
    def inventory(self) -> Path:
        """The file, as the fields are now."""
        file = self.folder / "cluster.yaml"
        file.write_text(yaml.safe_dump(self.fields, sort_keys=False))
        return file

    def train(self, control: Host, recipe: str, *more: str | Path, **environment: str) -> Running:
        """`./run.sh train RECIPE --cluster ..` on a host, without what run.sh does first: the environment is made."""
        command = [PYTHON, "-m", "launch", "train", recipe, "--cluster", self.inventory, "--out", self.out, *more]
        return control.begin(command, self.folder, PYTHONPATH=str(PROJECT), **environment)

    def job(self, control: Host, name: str, *more: str, **environment: str) -> Running:
        """The same with a file of jobs/ in place of verl, and three hosts in place of the recipe's two."""
        command = [PYTHON, HERE / "launch_job.py", self.inventory, HERE / "jobs" / f"{name}.py", self.out, *more]
        return control.begin(command, self.folder, PYTHONPATH=str(PROJECT), **environment)

    def stop(self, control: Host, *run: str) -> Running:
        """`./run.sh stop [RUN]` in the folder where the run was launched."""
        return control.begin([PYTHON, "-m", "launch", "stop", *run], self.folder, PYTHONPATH=str(PROJECT))
