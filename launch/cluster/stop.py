"""`./run.sh stop [RUN]`: ends what a run has started, on every host, by the run's id, and nothing else.

First the process that controls the run, if it lives on this machine: it ends all in order. Then every host is asked,
so that this works after a crash too.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from launch.cluster.record import RUNNING, RUNS, Record, find
from launch.cluster.transport import end_on
from launch.errors import LaunchError
from launch.inventory.fields import Ssh

CONTROL_SECONDS = 60
WRONG_USE = 2


def stop(run: str | None, runs: Path = RUNS) -> int:
    """End a run; returns 0, or 1 when a host could not be reached, or 2 when there is no such run."""
    console = Console(soft_wrap=True)
    try:
        record = find(run, runs)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return WRONG_USE
    name, hosts = record.data["run"], record.data["hosts"]
    end_control(record, console)
    with console.status(f"run {name}: asking {len(hosts)} hosts"), ThreadPoolExecutor(len(hosts)) as threads:
        answers = list(threads.map(lambda host: end_host(name, host), hosts))
    for host, (count, why) in zip(hosts, answers, strict=True):
        done = f"{count} ended" if count else "nothing left"
        console.print(f"{host['address']}: {f'could not be ended: {why}' if count is None else done}", markup=False)
    if any(count is None for count, _ in answers):
        return 1
    if record.data["state"] == RUNNING:
        record.change(state="stopped")
    return 0


def end_host(run: str, host: dict[str, Any]) -> tuple[int | None, str]:
    """What `end_on` says of a host of the record."""
    return end_on(run, Ssh(**host["ssh"]), host["address"], host["start"], host["local"], host["container"])


def end_control(record: Record, console: Console) -> None:
    """Ask the controlling process to end the run, and wait; one that does not is ended itself."""
    control = record.control()
    if control is None:
        return
    with console.status(f"run {record.data['run']}: its control process {control.pid} ends it"):
        control.terminate()
        gone = wait(control)
    if not gone:
        console.print(f"process {control.pid} did not end the run within {CONTROL_SECONDS} s: it is killed")
        control.kill()
    record.data = Record.load(record.folder / "run.json").data


def wait(process: psutil.Process) -> bool:
    """Whether it has ended in time; a zombie has."""
    deadline = time.monotonic() + CONTROL_SECONDS
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.2)
    return False
