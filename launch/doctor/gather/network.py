"""The host's network: NICs, the one that a run would use, taken ports, and what the kernel gives to others."""

import socket
from pathlib import Path

import psutil

from launch.doctor.facts import Listener, Network
from launch.doctor.gather.ray import run_of
from launch.doctor.wanted import Wanted
from launch.errors import LaunchError
from launch.network import choose, nics

KERNEL = Path("/proc/sys/net/ipv4")


def network(wanted: Wanted, kernel: Path = KERNEL) -> Network:
    """What the host's network looks like now."""
    found = nics()
    wire, problem = None, None
    if wanted.address is not None:
        try:
            chosen = choose(wanted.address, wanted.nic, found)
            wire = (chosen.nic, chosen.address)
        except LaunchError as reason:
            problem = str(reason)
    low, high = (kernel / "ip_local_port_range").read_text().split()
    reserved = (kernel / "ip_local_reserved_ports").read_text().strip()
    return Network(found, wire, problem, listeners(), (int(low), int(high)), tuple(ranges(reserved)))


def listeners() -> tuple[Listener, ...]:
    """The TCP ports that processes listen on."""
    found = {}
    for connection in psutil.net_connections(kind="tcp"):
        if connection.status == psutil.CONN_LISTEN:
            address, port = connection.laddr[:2]
            found.setdefault(port, Listener(port, address, connection.pid, *command_and_run(connection.pid)))
    return tuple(found[port] for port in sorted(found))


def command_and_run(pid: int | None) -> tuple[str | None, str | None]:
    """The command line of a process, and the run that it belongs to; None where it may not be seen or has ended."""
    if pid is None:
        return None, None
    try:
        process = psutil.Process(pid)
        words = " ".join(process.cmdline()).split()  # a title is padded with blanks
        return " ".join(words)[:120], run_of(process)
    except psutil.Error:
        return None, None


def ranges(text: str) -> list[tuple[int, int]]:
    """Ports as the kernel and HCCL write them: 60000-60050,60100. Empty for nothing and for auto."""
    parts = [part for part in text.replace(" ", "").split(",") if part and part != "auto"]
    return [(int(low), int(high or low)) for low, _, high in (part.partition("-") for part in parts)]


def open_ports(address: str, ports: list[int]) -> list[socket.socket]:
    """Listen on ports of an address. Those that are taken are left out: what they mean is for `listeners`."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    sockets = []
    for port in ports:
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((address, port))
            listening.listen()
            sockets.append(listening)
        except OSError:
            listening.close()
    return sockets


def reach(address: str, port: int, seconds: float) -> str | None:
    """None where a connection can be made, else why not."""
    try:
        with socket.create_connection((address, port), timeout=seconds):
            return None
    except TimeoutError:
        return f"no answer within {seconds:g} s"
    except OSError as reason:
        return reason.strerror or str(reason)
