"""Connection to a host: OpenSSH's client without prompts, or a shell on this machine.

It runs one shell line of the plan, which starts the host's part, directly or with `docker run`. If the process ends, a
one-line reason is derived from its exit code and the last lines of stderr. OpenSSH notices within 20 seconds that a
host is gone.
"""

import json
import queue
import shlex
import subprocess
import threading
from collections import deque
from dataclasses import asdict
from typing import Any, NamedTuple

from launch import LaunchError
from launch.cluster.inventory import Inventory
from launch.plan import Plan
from launch.plan.start import container_name, start_line
from launch.system.processes import piped

CONNECT_SECONDS = 10
ASK_SECONDS = 5
ASK_HERE_SECONDS = 30  # there is no network delay, but this machine may be busy
END_SECONDS = 60
SSH = (
    "ssh",
    "-T",
    *("-o", "BatchMode=yes"),
    *("-o", f"ConnectTimeout={CONNECT_SECONDS}"),
    *("-o", "ServerAliveInterval=5"),
    *("-o", "ServerAliveCountMax=3"),
)
SSH_FAILED = 255
NOT_FOUND, NOT_EXECUTABLE = 127, 126
SSH_ERRORS = (  # messages of OpenSSH's client that do not say what to do
    (
        "REMOTE HOST IDENTIFICATION HAS CHANGED",
        "its ssh host key has changed: if it should, run `ssh-keygen -R {host}`",
    ),
    ("Host key verification failed", "its ssh host key is not known here: run `ssh {host}` once and accept it"),
    ("Permission denied", "ssh: no key is accepted: check user and key in the inventory, and ssh-agent here ({said})"),
)
PASSING = ("Connection refused", "timed out", "No route to host", "Network is unreachable", "closed by remote host")
REMOTE_ERRORS = (  # messages of the shell or Python on the host
    ("No module named launch", "this project is not there: check `project` in the inventory ({said})"),
    ("No module named", "a Python package is missing there: is this the Python of the stack? ({said})"),
    ("cd:", "the project's folder is not there: check `project` in the inventory ({said})"),
)


def command(inventory: Inventory, host: int, line: str, local: bool = False) -> list[str]:
    """Return the command that runs a shell line on a host, given by its number: ssh, or bash on this machine."""
    if local:
        return ["bash", "-c", line]
    ssh = inventory.ssh_of(inventory.hosts[host])
    login = ["-l", ssh.user] if ssh.user else []
    port = ["-p", str(ssh.port)] if ssh.port else []
    key = ["-i", ssh.key, "-o", "IdentitiesOnly=yes"] if ssh.key else []
    return [*SSH, *login, *port, *key, "--", inventory.hosts[host].address, line]


def command_of(plan: Plan, index: int) -> list[str]:
    """Return the command that starts the part of a host."""
    node = plan.nodes[index]
    line = start_line(plan.inventory, index, run=plan.run, shm=max(node.host_gib // 2, 1), devices=node.devices)
    return command(plan.inventory, index, line, plan.local[index])


class Event(NamedTuple):
    """A line of a host's part, or its end.

    Attributes:
        host: number of the host.
        line: the line; empty at the end.
        is_output: whether it comes from stdout, rather than stderr.
        code: exit code at the end; None before.
    """

    host: int
    line: str = ""
    is_output: bool = False
    code: int | None = None


class Channel:
    """A host's part, started here or over ssh: its lines and finally its end are put into `events`."""

    def __init__(self, command: list[str], host: int, events: "queue.Queue[Event]") -> None:
        self.host, self.events = host, events
        self.errors: deque[str] = deque(maxlen=30)
        self.process = piped(command)
        errors = threading.Thread(target=self._read_errors, daemon=True)
        errors.start()
        threading.Thread(target=self._read, args=(errors,), daemon=True).start()

    def send(self, line: str) -> None:
        """Write a line to stdin; it is dropped if the part has ended, as its last event tells."""
        try:
            self.process.stdin.write(line + "\n")
            self.process.stdin.flush()
        except (BrokenPipeError, ValueError):
            return

    def close(self) -> None:
        """Close stdin, which ends the part in order."""
        try:
            self.process.stdin.close()
        except BrokenPipeError:
            return

    def kill(self) -> None:
        """Kill the client process on this machine."""
        self.process.kill()

    def _read(self, errors: threading.Thread) -> None:
        for line in self.process.stdout:
            self.events.put(Event(self.host, line.rstrip("\n"), is_output=True))
        code = self.process.wait()
        errors.join(1)
        self.events.put(Event(self.host, code=code))

    def _read_errors(self) -> None:
        for line in self.process.stderr:
            self.errors.append(line.rstrip())
            self.events.put(Event(self.host, line.rstrip()))


def ask(plan: Plan, index: int) -> dict[str, Any]:
    """Query a host for --dry-run; `chosen` has the values that the run would use, `problems` what would stop it.

    Raises:
        LaunchError: the host did not answer in time (five seconds over ssh).
    """
    address = plan.inventory.hosts[index].address
    seconds = ASK_HERE_SECONDS if plan.local[index] else ASK_SECONDS
    facts, why = converse(command_of(plan, index), {"facts": asdict(plan.nodes[index])}, address, seconds)
    if facts is None:
        raise LaunchError(f"{address}: {why}")
    return facts


def end_on(run: str, inventory: Inventory, host: int, local: bool) -> tuple[int | None, str]:
    """End a run's processes or container on a host; return how many were ended, or None and the reason."""
    address = inventory.hosts[host].address
    if inventory.image is None:
        node = command(inventory, host, start_line(inventory, host, run=run), local)
        answer, why = converse(node, {"end_run": run}, address, END_SECONDS)
        return (answer["count"], "") if answer else (None, why)
    stop = command(inventory, host, shlex.join(["docker", "stop", "--time", "20", container_name(run, host)]), local)
    try:
        answer = subprocess.run(stop, capture_output=True, text=True, timeout=END_SECONDS, errors="replace")
    except subprocess.TimeoutExpired:
        return None, f"no answer within {END_SECONDS} s"
    if answer.returncode and "No such container" not in answer.stderr:
        return None, reason(address, answer.returncode, answer.stderr)
    return int(answer.returncode == 0), ""


def converse(
    command: list[str], task: dict[str, Any], address: str, seconds: float
) -> tuple[dict[str, Any] | None, str]:
    """Give a host a short task; return its answer, or None and the reason."""
    process = piped(command)
    try:
        out, errors = process.communicate(json.dumps(task) + "\n", timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return None, f"no answer within {seconds:g} s"
    if process.returncode:
        return None, reason(address, process.returncode, errors)
    try:
        answer = json.loads(out.splitlines()[-1])  # a login shell may print lines before
    except (IndexError, ValueError):
        answer = None
    if not isinstance(answer, dict):
        return None, f"in place of an answer: {out[:80]!r}: does a login shell there print something?"
    return answer, ""


def reason(host: str, code: int, stderr: str) -> str:
    """Return one line on why the command on a host ended with `code`."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip() and not line.startswith(("@", "Warning:"))]
    said = lines[-1] if lines else "no message"
    for known in (SSH_ERRORS if code == SSH_FAILED else ()) + REMOTE_ERRORS:
        if line := next((line for line in [*reversed(lines), stderr] if known[0] in line), None):
            return known[1].format(host=host, said=line if line in lines else said)
    if code == SSH_FAILED:
        return f"ssh: {said.removeprefix('ssh: ')}"
    if code in (NOT_FOUND, NOT_EXECUTABLE):
        return f"the command cannot be run there: {said}: check `python` and `project` in the inventory"
    if code < 0:
        return f"its process was ended by signal {-code} ({said})"
    return f"its process ended with code {code}: {said}"


def may_pass(code: int, stderr: str) -> bool:
    """Return whether a retry may help, as a host that is still starting refuses connections or does not answer."""
    return code == SSH_FAILED and any(text in stderr for text in PASSING)
