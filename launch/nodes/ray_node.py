"""Ray on this host: `ray start --block` as a child of ours, with every port and its folder chosen, ended by its id.

Never `ray stop`: that ends every Ray of the user on this host, other runs and other people's included.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from pathlib import Path
from typing import Any

import psutil

from launch import network
from launch.environment.users import OTHER_CLUSTERS
from launch.errors import LaunchError
from launch.network import Wire
from launch.nodes import devices, ports
from launch.nodes.events import Emit
from launch.plan.fields import NodePlan
from launch.processes import end_run, mapped_segments, of_run, remove

END_SECONDS = 10
POLL_SECONDS = 0.2
CPU_ACTORS = 16  # verl's actors ask for a core each and mostly sleep; a small machine has fewer
CPU_OBJECT_STORE = 500_000_000


def start_command(plan: NodePlan, wire: Wire, count: int) -> list[str]:
    """The command that starts Ray on a host with `count` devices; a worker's names the head as the inventory does."""
    command = ["ray", "start", f"--node-ip-address={wire.address}"]
    if plan.role == "head":
        command += ["--head", f"--port={plan.ports['ray']}", "--include-dashboard=true"]
        command += [f"--dashboard-host={wire.address}", f"--dashboard-port={plan.ports['dashboard']}"]
    else:
        command += [f"--address={joined(plan.head, plan.ports['ray'])}"]
    low, high = ports.worker_range(plan.ports)
    command += [
        f"--{name}={port}"
        for name, port in ports.daemon_ports(plan.ports).items()
        if plan.role == "head" or name != "ray-client-server-port"
    ]
    command += [f"--min-worker-port={low + ports.RESERVED}", f"--max-worker-port={high}"]
    return [*command, *resources(plan.stack, count), f"--temp-dir={plan.temp_dir}", "--disable-usage-stats", "--block"]


def resources(stack: str, count: int) -> list[str]:
    """What Ray shall count on a host: verl asks for NPU or GPU, on stack cpu too for GPU, by name."""
    kind = devices.KINDS[stack]
    if kind == "npu":
        return [f"--resources={json.dumps({'NPU': count})}"]
    if kind == "gpu":
        return [f"--num-gpus={count}"]
    cores = max(CPU_ACTORS, psutil.cpu_count() or 1)
    return [f"--num-gpus={count}", f"--num-cpus={cores}", f"--object-store-memory={CPU_OBJECT_STORE}"]


def joined(address: str, port: int | str) -> str:
    """HOST:PORT; an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def wait_for_head(plan: NodePlan, ended: threading.Event, deadline: float) -> str | None:
    """The head's address once Ray's port there can be reached from this host; None when the run is to end.

    Raises:
        LaunchError: it could not be before the deadline (of time.monotonic()).
    """
    addresses, reason = network.resolve(plan.head), "not tried"
    while time.monotonic() < deadline and not ended.is_set():
        for address in addresses:
            try:
                socket.create_connection((address, int(plan.ports["ray"])), timeout=2).close()
                return address
            except OSError as error:
                reason = error.strerror or str(error)
        ended.wait(1)
    if ended.is_set():
        return None
    where = joined(plan.head, plan.ports["ray"])
    raise LaunchError(f"Ray's head {where} cannot be reached from this host: {reason}: is a firewall between them?")


class RayNode:
    """Ray's processes on this host."""

    def __init__(self, plan: NodePlan, command: list[str], environment: dict[str, str], emit: Emit) -> None:
        self.plan = plan
        self.last_words: deque[str] = deque(maxlen=5)
        shutil.rmtree(plan.temp_dir, ignore_errors=True)  # of an earlier attempt of this run
        Path(plan.temp_dir).mkdir(mode=0o700, parents=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command[1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # a Ctrl-C is for the control process, which ends all in order
        )
        threading.Thread(target=self._read, args=(emit,), daemon=True).start()

    def _read(self, emit: Emit) -> None:
        for line in self.process.stdout:
            if line.strip():
                self.last_words.append(line.strip())
                emit("log", source="ray", line=line.rstrip())

    def check(self) -> None:
        """Raise if Ray has ended by itself."""
        code = self.process.poll()
        if code is not None:
            raise LaunchError(f"Ray ended with code {code} on this host: {' | '.join(self.last_words) or 'no message'}")

    def wait_for_port(self, address: str, port: int, ended: threading.Event, deadline: float) -> None:
        """Wait until a daemon of this host's Ray listens; returns early when the run is to end."""
        while not ended.is_set():
            self.check()
            try:
                socket.create_connection((address, port), timeout=2).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(f"Ray does not listen on {joined(address, port)}: {error}") from None
            ended.wait(POLL_SECONDS)

    def end(self) -> int:
        """End Ray, then whatever else carries the run's id here; returns how many processes that were."""
        mine = of_run(self.plan.run)
        segments = {segment for process in mine for segment in mapped_segments(process.pid)}
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        end_run(self.plan.run)
        remove(segments)
        return len(mine)


def remove_folder(plan: NodePlan) -> None:
    """Remove the run's folder of Ray; its logs have been sent."""
    shutil.rmtree(plan.temp_dir, ignore_errors=True)


def adopt_token(environment: dict[str, str]) -> None:
    """This process is a client of the run's Ray from now on, and of no other."""
    for name in OTHER_CLUSTERS:
        os.environ.pop(name, None)
        if name in environment:
            os.environ[name] = environment[name]


def client(dashboard: str) -> Any:
    """Ray's job API at http://HOST:PORT."""
    from ray.job_submission import JobSubmissionClient

    return JobSubmissionClient(dashboard)


def trouble() -> tuple[type[Exception], ...]:
    """What Ray's clients raise while Ray is starting, is busy, or has gone."""
    from ray.util.state.exception import RayStateApiException
    from requests import RequestException

    return RayStateApiException, RequestException, ConnectionError, RuntimeError, TimeoutError
