"""`./run.sh stop [RUN]`: ends what a run has started, on every host, by the run's id, and nothing else.

First the process that controls the run, if it lives on this machine: it ends all in order. Then every host is asked,
so that this works after a crash too. Only what carries the run's id is ended, and nothing that the record says is run.
"""

import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from rich.console import Console

from ascend_quant.exits import DONE, FAILED, WRONG_USE
from launch.cluster.record import RUNNING, RUNS, Record, Told, find
from launch.cluster.transport import end_on
from launch.errors import LaunchError
from launch.plan.start import container_name, start_line

CONTROL_SECONDS = 60


def stop(run: str | None, runs: Path = RUNS) -> int:
    """End a run; returns DONE, FAILED when a host could not be reached, or WRONG_USE when there is no such run."""
    console = Console(soft_wrap=True)
    try:
        record, problems = find(run, runs)
    except LaunchError as error:
        print(error, file=sys.stderr)
        return WRONG_USE
    for problem in problems:
        print(problem, file=sys.stderr)
    hosts = record.told.inventory.hosts
    end_control(record, console)
    with console.status(f"run {record.told.run}: asking {len(hosts)} hosts"), ThreadPoolExecutor(len(hosts)) as threads:
        answers = list(threads.map(lambda index: end_host(record.told, index), range(len(hosts))))
    for host, (count, why) in zip(hosts, answers, strict=True):
        done = f"{count} ended" if count else "nothing left"
        console.print(f"{host.address}: {f'could not be ended: {why}' if count is None else done}", markup=False)
    if any(count is None for count, _ in answers):
        return FAILED
    if record.told.state == RUNNING:
        record.change(state="stopped")
    return DONE


def end_host(told: Told, index: int) -> tuple[int | None, str]:
    """What `end_on` says of a host of the record."""
    inventory, host = told.inventory, told.inventory.hosts[index]
    line = start_line(inventory, index, run=told.run)
    container = container_name(told.run, index) if inventory.image else None
    return end_on(told.run, inventory.ssh_of(host), host.address, line, told.local[index], container)


def end_control(record: Record, console: Console) -> None:
    """Ask the controlling process to end the run, and wait; one that does not is ended itself."""
    control = record.control()
    if control is None:
        return
    with console.status(f"run {record.told.run}: its control process {control.pid} ends it"):
        control.terminate()
        gone = wait(control)
    if not gone:
        console.print(f"process {control.pid} did not end the run within {CONTROL_SECONDS} s: it is killed")
        control.kill()
    record.told = Record.load(record.folder).told


def wait(process: psutil.Process) -> bool:
    """Whether it has ended in time; a zombie has."""
    deadline = time.monotonic() + CONTROL_SECONDS
    while time.monotonic() < deadline:
        if not process.is_running() or process.status() == psutil.STATUS_ZOMBIE:
            return True
        time.sleep(0.2)
    return False
