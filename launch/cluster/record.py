"""The record of a run in runs/<run>: run.json, the logs of all hosts, and the status line.

`stop` uses the record to end a run from another terminal or after a crash. A record contains no secrets: neither the
environment nor the token. It is trusted only if nobody but the caller can write it and its folders, and nothing in it
is executed: `stop` builds a host's command from the run's id and the inventory, as `train` does.

The terminal shows the lines of the run, and below them one live status line; without a terminal, the status line is
printed when it changes:

joined 2/3 · job RUNNING · step 12 of 100 · 0:12:31
"""

import os
import re
import socket
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal, TextIO

import psutil
from pydantic import Field, ValidationError
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

from ascend_quant.recipes.node import Fields
from launch import LaunchError
from launch.cluster.inventory import Inventory
from launch.plan import Plan
from launch.system import private
from launch.system.cause import COLOUR

RUNS = Path("runs")
FILE = "run.json"
RUNNING = "running"
DRIVER = "driver"
STEP = re.compile(r"(?:^|\s)step:(\d+) - ")  # verl's console logger prints this once per step
STEPS = re.compile(r"Total training steps: (\d+)")


class Control(Fields):
    """Identity of the process that controls a run: its machine, its pid and its start time."""

    host: str
    pid: Annotated[int, Field(ge=1, lt=1 << 31)]
    started: float


class Told(Fields):
    """Content of a run's record.

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
    """

    run: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$")]
    recipe: str
    state: Literal["running", "done", "failed", "not formed", "stopped"]
    control: Control
    inventory: Inventory | None = None
    local: list[bool] = Field(default_factory=list)
    ray: str | None = None
    restarts: int = 0
    cause: dict[str, str] | None = None


class Record:
    """Record of one run, in its folder."""

    def __init__(self, folder: Path, told: Told) -> None:
        self.folder, self.told = folder, told

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
        """Create the record of a run that starts now, controlled by this process; `where` has other fields of `Told`.

        Raises:
            LaunchError: see `create`.
        """
        this = psutil.Process()
        control = Control(host=socket.gethostname(), pid=this.pid, started=this.create_time())
        told = Told(state=RUNNING, control=control, **where)
        private.make_folder(runs)
        record = cls(private.make_folder(runs / told.run), told)
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
            told = Told.model_validate_json(private.read(file))
        except OSError as error:
            raise LaunchError(f"{file} cannot be read: {error.strerror}") from error
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "all of it"
            raise LaunchError(f"{file} is not the record of a run: {where}: {first['msg'][:200]}") from error
        return cls(folder, told)

    def save(self) -> None:
        """Write the record atomically, as `stop` may read it at any time."""
        new = self.folder / f"{FILE}.new"
        with private.open_file(new, "w") as file:
            file.write(self.told.model_dump_json(indent=1, exclude_none=True))
        os.replace(new, self.folder / FILE)

    def change(self, **values: Any) -> None:
        """Change fields of the record and save it."""
        self.told = self.told.model_copy(update=values)
        self.save()

    def control(self) -> psutil.Process | None:
        """Return the process that controls the run, if it is on this machine, with the recorded pid and start time."""
        told = self.told.control
        try:
            process = psutil.Process(told.pid)
            same = abs(process.create_time() - told.started) < 1 and told.host == socket.gethostname()
        except psutil.NoSuchProcess:
            return None
        return process if same else None


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
    open_ones = [record for record in records if record.told.state == RUNNING]
    if len(open_ones) != 1:
        names = ", ".join(record.told.run for record in open_ones)
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


class Logs:
    """Log files of a run, in its folder `logs`; only the owner can read them, as they may contain secrets.

    A restart appends to them.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "logs"
        private.make_folder(self.folder)
        self.files: dict[str, TextIO] = {}
        self.lines: Counter[str] = Counter()  # number of lines written, by log name

    def write(self, name: str, line: str) -> None:
        """Append a line to the log of `driver` or of a host."""
        if name not in self.files:
            self.files[name] = private.open_file(self.folder / f"{plain(name)}.log", "a")
        self.files[name].write(line + "\n")
        self.files[name].flush()
        self.lines[name] += 1

    def file(self, host: str, name: str, text: str) -> None:
        """Store one of Ray's log files from a host; its name, which the host sends, must stay inside the folder."""
        parts = PurePosixPath(name).parts
        if name.startswith("/") or ".." in parts:
            raise ValueError(f"{host} sent a log file with the invalid name {name!r}")
        path = self.folder / plain(host) / "ray" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with private.open_file(path, "w") as file:
            file.write(text)

    def close(self) -> None:
        """Close all files."""
        for file in self.files.values():
            file.close()


def plain(host: str) -> str:
    """Convert an address to a file name, since IPv6 addresses contain colons, and possibly a percent sign."""
    return host.replace(":", "_").replace("%", "_").replace("/", "_")


class Status:
    """Live status line of a run; `hosts` is the number of hosts that join, 0 on an existing Ray cluster."""

    def __init__(self, console: Console, hosts: int) -> None:
        self.console, self.hosts = console, hosts
        self.joined, self.job, self.doing = 0, "", "starting"
        self.step, self.steps = 0, 0
        self.told = ""
        columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()
        self.live = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self.line = self.live.add_task(self.text())

    def __enter__(self) -> "Status":
        self.live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.live.stop()

    def text(self) -> str:
        """Return the status as one line, without the elapsed time."""
        parts = [f"joined {self.joined}/{self.hosts}"] if self.hosts else []
        parts.append(f"job {self.job}" if self.job else self.doing)
        if self.step:
            parts.append(f"step {self.step} of {self.steps}" if self.steps else f"step {self.step}")
        return " · ".join(parts)

    def change(self, **values: int | str) -> None:
        """Change joined, job, doing, step or steps, and update the line."""
        for name, value in values.items():
            setattr(self, name, value)
        self.live.update(self.line, description=self.text())
        if not self.console.is_terminal and self.text() != self.told:
            self.told = self.text()
            self.say(self.told)

    def say(self, line: str) -> None:
        """Print a line above the live one."""
        self.console.print(Text(line), soft_wrap=True)

    def driver(self, line: str) -> None:
        """Print a line of verl's driver, and update the step from it."""
        text = COLOUR.sub("", line)
        self.console.print(Text.from_ansi(line), soft_wrap=True)
        if found := STEPS.search(text):
            self.change(steps=int(found[1]))
        if found := STEP.search(text):
            self.change(step=int(found[1]))
