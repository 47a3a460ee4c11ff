"""Ray on this host: `ray start --block` as a child process, with ports, folder and environment set for the run.

It is ended by the run's id, never by `ray stop`, which would end all of the user's Ray clusters on this host, including
those of other runs.
"""

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import TypeVar

import psutil

from ascend_quant.processes.cause import COLOUR
from launch import LaunchError, with_root
from launch.environment import network
from launch.environment.network import Wire
from launch.environment.resolve import node_environment, overruled
from launch.environment.variables import OTHER_CLUSTERS
from launch.nodes.checks import Checked
from launch.nodes.launcher import Launcher
from launch.plan import NodePlan
from launch.recipes.stacks import pins
from launch.system.processes import MARK, end_run

T = TypeVar("T")
HOST = "host"  # label with the number of a host in the plan
LAST_WORDS_SECONDS = 2
POLL_SECONDS = 0.5
GAVE_UP = (  # messages of Ray if a node, or the head, exceeds time limits that are fixed in Ray
    "timed out during startup",
    "No node info found for head node",
)
EXITED = re.compile(r"\w+ \[exit code=-?\d+\]")  # a daemon's end; Ray then prints hundreds of lines of its log
CPU_ACTORS = 16  # verl's actors request one core each and are mostly idle; small machines have fewer cores
CPU_OBJECT_STORE = 500_000_000


def start_command(plan: NodePlan, wire: Wire, count: int, labels: Mapping[str, str] | None = None) -> list[str]:
    """Return the `ray start` command of a host with `count` devices; a worker's command has the inventory's head.

    Args:
        labels: labels of the host's Ray node, beside its number in the plan.
    """
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
    named = ",".join(f"{name}={value}" for name, value in {HOST: plan.host, **(labels or {})}.items())
    command += [*resources(plan.stack, count), f"--labels={named}", f"--temp-dir={plan.temp_dir}"]
    return [*command, "--disable-usage-stats", "--block"]


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


@dataclass
class Part:
    """This host's part of one attempt, with Ray's processes.

    Attributes:
        deadline: deadline for joining, in time.monotonic(). Until then a start that timed out in Ray is retried: Ray's
            own timeout is fixed, and too short on busy hosts, such as when all hosts read a network disk at once.
        token: Ray's token, if the launcher has sent it; None if the hosts are started one by one.
        environment: environment of Ray and therefore of all processes here.
        formed: whether all hosts have joined.
        ray: the process of `ray start --block`, after it was started.
    """

    plan: NodePlan
    checked: Checked
    launcher: Launcher
    deadline: float
    token: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    formed: bool = False
    ray: subprocess.Popen[str] | None = None

    def adopt(self, token: str) -> None:
        """Make Ray require the token, and this process a client of the run's Ray and of no other cluster."""
        own = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}  # without it, Ray's dashboard runs anyone's code
        self.environment |= own
        for name in OTHER_CLUSTERS:
            os.environ.pop(name, None)
        os.environ.update(own, no_proxy="*", NO_PROXY="*")  # hosts of a run connect without a proxy

    def start_ray(self, command: list[str]) -> None:
        """Start Ray with a command of `start_command`."""
        self._command, self._last_words, self._exited = command, deque(maxlen=5), []
        self.ray = subprocess.Popen(
            [sys.executable, "-m", "ray.scripts.scripts", *command[1:]],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C reaches only the control process, which ends everything in order
        )
        self._reader = threading.Thread(target=self._read, args=(self.ray, self._last_words), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str], last_words: deque[str]) -> None:
        for line in process.stdout:
            if line.strip():
                self._exited += EXITED.findall(COLOUR.sub("", line))
                last_words.append(line.strip())
                self.launcher.log(f"ray: {line.rstrip()}")

    def check_ray(self) -> None:
        """Raise an error if Ray has ended by itself, unless it may be restarted."""
        code = self.ray and self.ray.poll()
        if code is None:
            return
        self._reader.join(LAST_WORDS_SECONDS)
        words = " | ".join([*self._exited, *self._last_words]) or "no message"
        if not any(reason in words for reason in GAVE_UP) or time.monotonic() > self.deadline:
            raise LaunchError(f"Ray exited with code {code} on this host: {words}")
        self.launcher.note("Ray timed out while starting on this host, which is busy; it was started again")
        self.end_ray()
        self.start_ray(self._command)

    def end_ray(self) -> None:
        """End Ray, and all other processes on this host with the run's id."""
        end_run(self.plan.run)
        if self.ray is not None:
            self.ray.wait()

    def until(self, done: Callable[[], T], failed: str) -> T | None:
        """Call `done` until it succeeds, and return its result; return None if the part is to end.

        Raises:
            LaunchError: `done` has not succeeded before the deadline, or Ray has ended here.
        """
        while not self.launcher.ended.wait(POLL_SECONDS):
            self.check_ray()
            try:
                return done()
            except (LaunchError, OSError, RuntimeError) as error:
                if time.monotonic() > self.deadline:
                    raise LaunchError(f"{failed}: {error}") from error
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
        **loopback(checked),
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",  # Ray would wait 30 s for tasks that are to end with it
        "SPT_NOENV": "1",  # keeps setproctitle from overwriting /proc/PID/environ, where the mark is read
        MARK: plan.run,
    }
    return whole, overruled(settings, own)


def loopback(checked: Checked) -> dict[str, str]:
    """Return variables that keep a run on one host, and TransferQueue, on loopback instead of a NIC."""
    return {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"} if ip_address(checked.wire.address).is_loopback else {}


def this_python(own: Mapping[str, str]) -> dict[str, str]:
    """Return variables that make `python` in a job this interpreter, with these sources on its path."""
    return {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), own.get("PATH", os.defpath)]),
        "PYTHONPATH": with_root(own),
    }
