"""The record of a run: runs/<run>/run.json.

`stop` uses the record to end a run from another terminal or after a crash. A record contains no secrets: neither the
environment nor the token. It is trusted only if nobody but the caller can write it and its folders, and nothing in it
is executed: `stop` builds a host's command from the run's id and the inventory, as `train` does.
"""

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Literal

import psutil
from pydantic import ConfigDict, Field, ValidationError

from ascend_quant.recipes.node import Fields
from launch import LaunchError
from launch.cluster.inventory import Inventory
from launch.plan import Plan
from launch.system import private

RUNS = Path("runs")
FILE = "run.json"
RUNNING = "running"


class Control(Fields):
    """Identity of the process that controls a run: its machine, its pid and its start time."""

    host: str
    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    started: float


class Record(Fields):
    """Record of one run.

    Attributes:
        run: the run's id.
        recipe: name of the recipe.
        state: state of the run.
        control: the process that controls the run.
        inventory: the inventory, without variables; None for a run on an existing Ray cluster.
        local: whether each of the inventory's hosts is the machine that controls the run.
        ray: address of the existing Ray cluster's dashboard.
        restarts: number of restarts so far.
        cause: cause of the last failure.
        folder: the run's folder, in which the record is.
    """

    model_config = ConfigDict(frozen=False)

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]
    recipe: str
    state: Literal["running", "done", "failed", "not formed", "stopped"]
    control: Control
    inventory: Inventory | None = None
    local: list[bool] = Field(default_factory=list)
    ray: str | None = None
    restarts: int = 0
    cause: dict[str, str] | None = None
    folder: Path = Field(default=Path(), exclude=True)

    @classmethod
    def create(cls, plan: Plan, runs: Path = RUNS) -> "Record":
        """Create the record of a run that starts now, controlled by this process.

        Raises:
            LaunchError: `runs` or the run's folder belongs to another user.
        """
        inventory = without_variables(plan.inventory)
        return cls.begin(runs, run=plan.run, recipe=plan.recipe, inventory=inventory, local=plan.local)

    @classmethod
    def begin(cls, runs: Path, **where: Any) -> "Record":
        """Create the record of a run that starts now, controlled by this process; `where` has other fields.

        Raises:
            LaunchError: see `create`.
        """
        this = psutil.Process()
        control = Control(host=socket.gethostname(), pid=this.pid, started=this.create_time())
        record = cls(state=RUNNING, control=control, **where)
        private.make_folder(runs)
        record.folder = private.make_folder(runs / record.run)
        record.save()
        return record

    @classmethod
    def load(cls, folder: Path) -> "Record":
        """Load the record in a run's folder.

        Raises:
            LaunchError: the file does not exist, is not a record, or is writable by others.
        """
        file = folder / FILE
        try:
            record = cls.model_validate_json(private.read(file))
        except OSError as error:
            raise LaunchError(f"{file} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "all of it"
            raise LaunchError(f"{file} is not the record of a run: {where}: {first['msg'][:200]}") from error
        record.folder = folder
        return record

    def save(self) -> None:
        """Write the record atomically, as `stop` may read it at any time."""
        new = self.folder / f"{FILE}.new"
        with private.open_file(new, "w") as file:
            file.write(self.model_dump_json(indent=1, exclude_none=True))
        os.replace(new, self.folder / FILE)

    def change(self, **values: Any) -> None:
        """Change fields of the record and save it."""
        for name, value in values.items():
            setattr(self, name, value)
        self.save()

    def controller(self) -> psutil.Process | None:
        """Return the process that controls the run, if it is on this machine, with the recorded pid and start time."""
        try:
            process = psutil.Process(self.control.pid)
            same = abs(process.create_time() - self.control.started) < 1
        except psutil.NoSuchProcess:
            return None
        return process if same and self.control.host == socket.gethostname() else None


def without_variables(inventory: Inventory) -> Inventory:
    """Return an inventory without variables, whose values may be secrets, and which `stop` does not need."""
    hosts = [host.model_copy(update={"environment": {}}) for host in inventory.hosts]
    return inventory.model_copy(update={"environment": {}, "hosts": hosts})


def find(run: str | None, runs: Path = RUNS) -> tuple[Record, list[str]]:
    """Find the record of a run by its id or its folder; by default, that of the only run that has not ended.

    Returns:
        The record, and if all records were searched, a line for each one that cannot be read or is not trusted.

    Raises:
        LaunchError: there is no such run, its record is not trusted, or several runs have not ended.
    """
    if run is not None:
        return Record.load(folder_of(run, runs)), []
    records, problems = [], []
    for file in sorted(runs.glob(f"*/{FILE}")):
        try:
            records.append(Record.load(file.parent))
        except LaunchError as error:
            problems.append(str(error))
    open_ones = [record for record in records if record.state == RUNNING]
    if len(open_ones) != 1:
        names = ", ".join(record.run for record in open_ones)
        said = f"several runs have not ended: {names}. Say which: ./run.sh stop RUN" if names else "no run to stop"
        raise LaunchError("\n".join([*problems, f"{said} (looked in {os.path.realpath(runs)})"]))
    return open_ones[0], problems


def folder_of(run: str, runs: Path) -> Path:
    """Return the folder of a run, which is given by its id, or by a path with a slash.

    Raises:
        LaunchError: the folder has no record.
    """
    folder = Path(os.path.abspath(run)) if "/" in run else runs / run
    if not os.path.lexists(folder / FILE):
        known = ", ".join(sorted(file.parent.name for file in runs.glob(f"*/{FILE}"))) or "none"
        raise LaunchError(f"no run {run[:80]!r}: there is no {folder / FILE}; {os.path.realpath(runs)} has {known}")
    return folder
