"""Ray on this host: `ray start --block` as a child process, with ports, folder and environment set for the run.

It is ended by its process id, never by `ray stop`, which would end all of the user's Ray clusters on this host,
including those of other runs. A `Part` holds the state of one attempt on this host: its launcher, the results of its
checks, and its Ray.
"""

import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from ascend_quant.processes.tree import mapped_segments, remove
from launch import LaunchError, with_root
from launch.environment import network
from launch.environment.network import Wire
from launch.environment.resolve import node_environment, overruled
from launch.environment.variables import OTHER_CLUSTERS
from launch.nodes.checks import Checked
from launch.nodes.launcher import Launcher
from launch.plan import NodePlan
from launch.recipes.stacks import pins
from launch.system import private
from launch.system.processes import MARK, end_run, of_run

if TYPE_CHECKING:
    from launch.ray_jobs.cluster import Cluster

END_SECONDS = 10
LAST_WORDS_SECONDS = 2
POLL_SECONDS = 0.2
GAVE_UP = (  # messages of Ray if a node, or the head, exceeds time limits that are fixed in Ray
    "timed out during startup",
    "No node info found for head node",
)
CPU_ACTORS = 16  # verl's actors request one core each and are mostly idle; small machines have fewer cores
CPU_OBJECT_STORE = 500_000_000


def start_command(plan: NodePlan, wire: Wire, count: int) -> list[str]:
    """Return the `ray start` command of a host with `count` devices; a worker's command has the inventory's head."""
    command = ["ray", "start", f"--node-ip-address={wire.address}"]
    if plan.role == "head":
        command += ["--head", f"--port={plan.ports['ray']}", "--include-dashboard=true"]
        command += [f"--dashboard-host={wire.address}", f"--dashboard-port={plan.ports['dashboard']}"]
    else:
        command += [f"--address={joined(plan.head, plan.ports['ray'])}"]
    low, high = network.worker_range(plan.ports)
    command += [
        f"--{name}={port}"
        for name, port in network.daemon_ports(plan.ports).items()
        if plan.role == "head" or name != "ray-client-server-port"
    ]
    command += [f"--min-worker-port={low + network.RESERVED}", f"--max-worker-port={high}"]
    return [*command, *resources(plan.stack, count), f"--temp-dir={plan.temp_dir}", "--disable-usage-stats", "--block"]


def resources(stack: str, count: int) -> list[str]:
    """Return a host's Ray resources: verl requests NPU or GPU by name, on stack cpu also GPU."""
    kind = pins(stack).devices
    if kind == "npu":
        return [f"--resources={json.dumps({'NPU': count})}"]
    if kind == "gpu":
        return [f"--num-gpus={count}"]
    cores = max(CPU_ACTORS, psutil.cpu_count() or 1)
    return [f"--num-gpus={count}", f"--num-cpus={cores}", f"--object-store-memory={CPU_OBJECT_STORE}"]


def joined(address: str, port: int | str) -> str:
    """Format HOST:PORT, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def wait_for_head(plan: NodePlan, ended: threading.Event, deadline: float) -> str | None:
    """Wait until Ray's port on the head is reachable; return the head's address, or None if the run is to end.

    Raises:
        LaunchError: the port was not reachable before the deadline (in time.monotonic()).
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
    raise LaunchError(
        f"Ray's head {where} cannot be reached from this host: {reason}: check for a firewall between the hosts"
    )


class RayNode:
    """Handle of Ray's processes on this host.

    Args:
        deadline: deadline for joining, in time.monotonic(); until then a start that timed out in Ray is retried. Ray's
            own timeout is fixed, and too short on busy hosts, such as when all hosts read a network disk at once.
    """

    def __init__(
        self, plan: NodePlan, command: list[str], environment: dict[str, str], launcher: Launcher, deadline: float
    ) -> None:
        self.plan, self.command, self.environment = plan, command, environment
        self.launcher, self.deadline = launcher, deadline
        self._start()

    def _start(self) -> None:
        self.last_words: deque[str] = deque(maxlen=5)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *self.command[1:]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only the control process, which ends everything in order
        )
        self._reader = threading.Thread(target=self._read, args=(self.process, self.last_words), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str], last_words: deque[str]) -> None:
        for line in process.stdout:
            if line.strip():
                last_words.append(line.strip())
                self.launcher.log(f"ray: {line.rstrip()}")

    def check(self) -> None:
        """Raise an error if Ray has ended by itself, unless it may be restarted."""
        code = self.process.poll()
        if code is None:
            return
        self._reader.join(LAST_WORDS_SECONDS)
        words = " | ".join(self.last_words) or "no message"
        if not any(reason in words for reason in GAVE_UP) or time.monotonic() > self.deadline:
            raise LaunchError(f"Ray exited with code {code} on this host: {words}")
        self.launcher.note("Ray timed out while starting on this host, which is busy; it was started again")
        self.end()
        self._start()

    def wait_for_port(self, address: str, port: int, ended: threading.Event, deadline: float) -> None:
        """Wait until a daemon of this host's Ray listens; return early if the run is to end."""
        while not ended.is_set():
            self.check()
            try:
                socket.create_connection((address, port), timeout=2).close()
                return
            except OSError as error:
                if time.monotonic() > deadline:
                    raise LaunchError(f"Ray does not listen on {joined(address, port)}: {error}") from None
            ended.wait(POLL_SECONDS)

    def end(self) -> None:
        """End Ray, then all other processes on this host with the run's id."""
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


def make_folder(plan: NodePlan) -> None:
    """Create the run's folder, which is empty."""
    private.make_folder(Path(plan.temp_dir).parent)
    remove_folder(plan)  # from an earlier attempt of this run
    private.make_folder(Path(plan.temp_dir))


def remove_folder(plan: NodePlan) -> None:
    """Remove the run's Ray folder, after its logs have been sent."""
    shutil.rmtree(plan.temp_dir, ignore_errors=True)


def adopt_token(environment: dict[str, str]) -> None:
    """Make this process a client of the run's Ray from now on, and of no other cluster."""
    for name in OTHER_CLUSTERS:
        os.environ.pop(name, None)
        if name in environment:
            os.environ[name] = environment[name]


@dataclass
class Part:
    """This host's part of one attempt.

    Attributes:
        deadline: deadline for joining, in time.monotonic().
        environment: environment of Ray and therefore of all processes here.
        formed: whether this host has joined, and on the head, whether all others have.
        ray: Ray on this host, after it was started.
    """

    plan: NodePlan
    checked: Checked
    launcher: Launcher
    deadline: float
    environment: dict[str, str] = field(default_factory=dict)
    formed: bool = False
    ray: RayNode | None = None

    def start_ray(self, plan: NodePlan, port: int) -> None:
        """Start Ray as specified by `plan`, and wait until it listens on one of its ports."""
        command = start_command(plan, self.checked.wire, len(self.checked.devices))
        self.ray = RayNode(plan, command, self.environment, self.launcher, self.deadline)
        self.ray.wait_for_port(self.checked.wire.address, port, self.launcher.ended, self.deadline)

    def connect(self, dashboard: str) -> "Cluster | None":
        """Connect to the run's Ray as soon as its dashboard answers; return None if the part is to end.

        Raises:
            LaunchError: the dashboard has not answered before the deadline, or Ray has ended here.
        """
        from launch.ray_jobs.cluster import connect  # imports Ray, which reads the environment

        while not self.launcher.ended.wait(POLL_SECONDS):
            self.ray.check()
            try:
                return connect(dashboard)
            except (LaunchError, OSError, RuntimeError) as error:
                if time.monotonic() > self.deadline:
                    raise LaunchError(f"Ray's dashboard does not answer: {error}") from error
        return None


def variables(plan: NodePlan, checked: Checked, own: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Return the environment of Ray on this host and of everything that it starts, with notes about it."""
    values = {
        **plan.values,
        "address": checked.wire.address,
        "nic": checked.wire.nic,
        "family": checked.wire.family,
        "devices": ",".join(map(str, checked.devices)),
        "places": ",".join(map(str, checked.places)),
    }
    settings = node_environment(plan.stack, values, plan.layers)
    whole = {
        **{name: value for name, value in own.items() if name not in OTHER_CLUSTERS},
        **{setting.name: setting.value for setting in settings if setting.name not in OTHER_CLUSTERS},
        **network.metrics_ports(plan.ports),
        **this_python(own),
        **authentication(own.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)),  # a worker takes the head's later
        **loopback(checked),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # Ray would wait 30 s for tasks that are to end with it
        "SPT_NOENV": "1",  # keeps setproctitle from overwriting /proc/PID/environ, where the mark is read
        MARK: plan.run,
    }
    return whole, overruled(settings, own)


def authentication(token: str) -> dict[str, str]:
    """Return the variables that make Ray require the token, without which its dashboard runs anyone's code."""
    return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}


def loopback(checked: Checked) -> dict[str, str]:
    """Return variables that keep a run on one host, and TransferQueue, on loopback instead of a NIC."""
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if ip_address(checked.wire.address).is_loopback else {}


def this_python(own: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make `python` in a job this interpreter, with these sources on its path."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)]),
        "PYTHONPATH": with_root(own),
    }
