"""The port guard of a run: only its own hosts can connect to its ports, and on each host only its own user and root.

It is off unless the inventory has `socket_filter: true`. port_guard.c is compiled with the run's addresses on each
host, and tested. It needs neither root nor a firewall, leaves nothing on the host when a run dies, and does not affect
sockets of other processes. It needs a C compiler, as torch.compile and Triton do.
"""

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from pathlib import Path

from launch import LaunchError
from launch.environment import network

SOURCE = Path(__file__).with_name("port_guard.c")
COMPILERS = ("cc", "gcc", "clang")
LIBRARY = "aq-port-guard.so"
CALLS, CALL_BYTES = "aq-port-guard.calls", 34  # struct call of port_guard.c, which checks the size
SO_ATTACH_FILTER = 26  # Linux's value; Python has no name for it
SECONDS = 60
TRY = f"""
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), 10)
server.settimeout(10)
server.accept()
assert "{LIBRARY}" in open("/proc/self/maps").read(), "LD_PRELOAD does not count here"
"""


def build(folder: Path, hosts: Iterable[str]) -> Path:
    """Build the port guard's library, in a private folder.

    Args:
        hosts: IP addresses of the run's hosts; this host's own are added.

    Raises:
        LaunchError: there is no compiler, or the library does not work here.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        without = "without one the run's ports would be open to every host: install gcc"
        raise LaunchError(f"no C compiler found ({', '.join(COMPILERS)}): {without}")
    own = ["::1", *(ip for ips in network.nics().values() for ip in ips)]
    made, calls = folder / LIBRARY, folder / CALLS
    with calls.open("wb") as file:
        file.truncate((1 << 16) * CALL_BYTES)  # sparse: a page is allocated once a call is written to it
    constants = {"OWN": table(own), "HOSTS": table([*own, *hosts]), "CALL_BYTES": CALL_BYTES}
    constants["CALLS"] = json.dumps(str(calls.resolve()), ensure_ascii=False)
    command = [compiler, "-shared", "-fPIC", "-O2", *(f"-D{name}={value}" for name, value in constants.items())]
    _run([*command, "-o", str(made), str(SOURCE), "-ldl"], os.environ, "the port guard was not compiled")
    _run([sys.executable, "-S", "-c", TRY], preloaded(made, os.environ), f"{made} does not guard the run's ports")
    return made


def shown() -> str | None:
    """Return why others see this host's ports as open, although they are rejected; None if ports are silent."""
    take_all = ctypes.create_string_buffer(struct.pack("HBBI", 0x06, 0, 0, 0xFFFFFFFF))
    filter_ = struct.pack("HP", 1, ctypes.addressof(take_all))  # struct sock_fprog
    with socket.socket() as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
        except OSError as error:
            open_ = "other hosts can connect to the run's ports, but are disconnected before a byte is read"
            return f"the kernel does not allow this process socket filters ({error}): {open_}"
    return None


def preloaded(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Put the library first in LD_PRELOAD, and tell Ray to keep LD_PRELOAD for its workers."""
    libraries = [str(library), environment.get("LD_PRELOAD")]
    return {**environment, "LD_PRELOAD": ":".join(filter(None, libraries)), "RAY_LD_PRELOAD_ON_WORKERS": "1"}


def in_16_bytes(address: str) -> bytes:
    """Return an IP address as 16 bytes of IPv6, with IPv4 as ::ffff:a.b.c.d."""
    ip = ip_address(address)
    return ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed


def table(addresses: Iterable[str]) -> str:
    """Return addresses as a C initializer of an array of 16-byte arrays."""
    return ",".join(f"{{{','.join(map(str, in_16_bytes(address)))}}}" for address in addresses)


def _run(command: list[str], environment: Mapping[str, str], failed: str) -> None:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{failed}: {command[0]} did not finish within {SECONDS} s") from None
    if done.returncode or "cannot be preloaded" in done.stderr:
        said = done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"]
        raise LaunchError(f"{failed}: {said[-1][:300]}")
