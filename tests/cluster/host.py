"""A simulated host: a machine of its own to everything that runs on it.

It has a name, network interfaces, processes, /tmp, /dev/shm, /etc and /root of its own, and sshd. The project, its
Python and the shared folder are those of this machine, as if mounted from one file server.
"""

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from cluster.keys import Keys
from cluster.namespaces import HOST, entered, ip
from cluster.running import Running
from cluster.switch import Switch

PROJECT = Path(__file__).parents[2]
PYTHON = sys.executable
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
SHELL = {"HOME": "/root", "USER": "root", "LANG": "C.UTF-8", "PATH": f"{Path(sys.prefix) / 'bin'}:{SYSTEM_PATH}"}
EMPTY = ("/tmp", "/var/tmp", "/run", "/dev/shm", "/root")
COPIED = ("/etc",)
# What `pkill python`, `ray stop` and other broad brushes would end.
OTHER_PEOPLE = (
    ["python3", "-c", "import time; time.sleep(1e6)", "verl", "vllm"],
    ["bash", "-c", "exec -a ray::IDLE sleep infinity"],
)


@dataclass(frozen=True)
class Nic:
    """A network interface: its name, and its addresses with prefix lengths."""

    name: str
    addresses: tuple[str, ...]


class Host:
    """One simulated host, running from when it is made.

    Attributes:
        name: its host name.
        pid: process 1 of the host, as seen from outside.
        residents: the processes that no run may touch: the host's own and other people's.
        ssh_port: where its sshd listens.
    """

    def __init__(self, name: str, nic: Nic, switch: Switch, keys: Keys, shared: Path, ssh_port: int = 22) -> None:
        self.name, self.ssh_port = name, ssh_port
        self._nic, self._switch, self._keys, self._shared = nic, switch, keys, shared
        self._folder = shared / name
        self._folder.mkdir()
        (self._folder / "staging").mkdir()
        self._running: list[Running] = []
        self.start()

    def start(self, session_environment: dict[str, str] | None = None) -> None:
        """Switch the host on; `session_environment` is what its ssh sessions have besides."""
        config = self._folder / "sshd_config"
        config.write_text(self._keys.sshd_config(self.ssh_port, session_environment or {}))
        settings = {
            "name": self.name,
            "empty": EMPTY,
            "copied": COPIED,
            "kept": [str(path) for path in (PROJECT, Path(sys.prefix), Path(sys.base_prefix), self._shared)],
            "staging": str(self._folder / "staging"),
            "sshd": ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)],
            "ssh_port": self.ssh_port,
        }
        unshare = ["setpriv", "--pdeathsig=KILL", "unshare", *HOST, "--fork", "--kill-child", "--mount-proc"]
        first = [PYTHON, "-I", str(Path(__file__).with_name("first_process.py")), json.dumps(settings)]
        with (self._folder / "host.log").open("ab") as log:
            self._process = subprocess.Popen([*unshare, *first], stdout=subprocess.PIPE, stderr=log, env=SHELL)
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError(f"{self.name} did not start: {(self._folder / 'host.log').read_text()[-2000:]}")
        self.pid = psutil.Process(self._process.pid).children()[0].pid
        self._cables: dict[str, str] = {}
        self.add_nic(self._nic)
        ip(self.pid, "route", "add", "default", "dev", self._nic.name)
        self.path("/etc/ssh/ssh_known_hosts").write_text(self._keys.known_hosts())
        self.name_hosts({})
        self.residents = self.processes()
        for command in OTHER_PEOPLE:
            self.settle(command)

    @property
    def address(self) -> str:
        """The first address of its first interface."""
        return self._nic.addresses[0].partition("/")[0]

    @property
    def nic(self) -> str:
        """The name of its first interface."""
        return self._nic.name

    @property
    def is_on(self) -> bool:
        return self._process.poll() is None

    def kill(self) -> None:
        """The host loses power: it is silent from now on, so nobody is told of a closed connection."""
        self.cut()
        os.kill(self.pid, signal.SIGKILL)
        self._wake_parents()
        self._process.wait()

    def restart(self, session_environment: dict[str, str] | None = None) -> None:
        """Off and on again: nothing of what ran, or was in /tmp, /dev/shm, /etc or /root, is left."""
        if self.is_on:
            self.kill()
        self.start(session_environment)

    def stop_sshd(self) -> None:
        """Nobody can log in any more."""
        sshd = {process for process in self.residents if process.name() == "sshd"}
        self.residents -= sshd
        for process in sshd:
            process.kill()

    def close(self) -> None:
        """End the host for good, and wait for what was started on it from outside."""
        if self.is_on:
            self.kill()
        self._process.stdout.close()
        for running in self._running:
            running.end()

    def cut(self) -> None:
        """Pull out all network cables."""
        for cable in self._cables.values():
            self._switch.set_cable(cable, "down")

    def _wake_parents(self) -> None:
        """nsenter stops with its command, and a host ends only when nsenter has taken note of its command's end."""
        for running in self._running:
            running.wake()

    def add_nic(self, nic: Nic) -> None:
        """One more network interface on the same switch."""
        self._cables[nic.name] = self._switch.plug_in(self.pid, nic.name, mac_address(self.name, nic.name))
        self.readdress(nic)

    def readdress(self, nic: Nic) -> None:
        """Give an interface these addresses and no others."""
        ip(self.pid, "address", "flush", "dev", nic.name)
        ip(self.pid, "link", "set", nic.name, "up")
        for address in nic.addresses:
            ip(self.pid, "address", "add", address, "dev", nic.name)

    def name_hosts(self, names: dict[str, str]) -> None:
        """What /etc/hosts says besides localhost: name -> address."""
        lines = {"localhost": "127.0.0.1", **names}
        self.path("/etc/hosts").write_text("".join(f"{address} {name}\n" for name, address in lines.items()))

    def path(self, inside: str) -> Path:
        """A path of the host, as it is reached from outside."""
        return Path(f"/proc/{self.pid}/root{inside}")

    def processes(self) -> set[psutil.Process]:
        """What runs on the host, its process 1 and sshd included."""
        namespace = pid_namespace(self.pid)
        found = {process for process in psutil.process_iter() if pid_namespace(process.pid) == namespace}
        return {process for process in found if is_alive(process)}

    def commands(self) -> dict[psutil.Process, list[str]]:
        """Return the processes of the host and their command lines, without those that end while they are read."""
        found = {}
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                found[process] = process.cmdline()
        return found

    def begin(self, command: Sequence[str | Path], folder: Path = PROJECT, **environment: str) -> Running:
        """Start a command in a shell's environment, and these variables."""
        output = self._folder / f"output{len(self._running) + 1}.log"
        entering = entered(self.pid, *HOST, f"--wdns={folder}")
        self._running.append(Running([*entering, *map(str, command)], SHELL | environment, output))
        return self._running[-1]

    def settle(self, command: Sequence[str | Path], **environment: str) -> Running:
        """Start something that is another user's: it must outlive the test."""
        running = self.begin(command, **environment)
        while not running.group():
            assert running.is_on, running.text
            time.sleep(0.01)
        self.residents |= set(running.group())
        return running

    def run(self, command: Sequence[str | Path], seconds: float = 60, **environment: str) -> str:
        """Run a command to its end; returns what it prints.

        Raises:
            AssertionError: it failed, or did not end in time; with the end of its output.
        """
        running = self.begin(command, **environment)
        code = running.wait(seconds)
        assert code == 0, f"{self.name}: {' '.join(map(str, command))}: code {code}\n{running.text[-6000:]}"
        return running.text


def mac_address(host: str, nic: str) -> str:
    """That of an interface: the same after a restart, so that the others find the host again at once."""
    return "02:" + hashlib.sha256(f"{host} {nic}".encode()).digest()[:5].hex(":")


def pid_namespace(pid: int) -> str | None:
    """Which process namespace a process is in; None when it has ended, or is not ours to look at."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs: not ended, and not a zombie."""
    try:
        process.name()  # psutil keeps it: what it prints for a process that has ended says which one it was
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
