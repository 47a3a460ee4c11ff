"""The door of a run: only its own hosts reach what it listens on, and of each host only its own user and root.

Off unless the inventory says `socket_filter: true`. It is door.c with the run's rules, compiled on the host where the
run is, and tried. It needs neither root nor a firewall, leaves nothing on the host when a run dies, and touches no
socket of others. It needs the C compiler that torch.compile and Triton need too. Who may come in is a classic BPF
program: it looks at the source address of each packet for a listening socket.
"""

import ctypes
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple

from launch import network
from launch.errors import LaunchError

SOURCE = Path(__file__).with_name("door.c")
COMPILERS = ("cc", "gcc", "clang")
LIBRARY = "aq-door.so"
CALLS, CALL_BYTES = "aq-door.calls", 34  # struct call of door.c, which compares
SO_ATTACH_FILTER = 26  # of Linux; Python has no name for it
SECONDS = 60
TRY = f"""
import socket
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname(), 10)
server.settimeout(10)
server.accept()
assert "{LIBRARY}" in open("/proc/self/maps").read(), "LD_PRELOAD does not count here"
"""
TAKE, DROP = 0xFFFFFFFF, 0
NETWORK = 0xFFF00000  # SKF_NET_OFF: offsets count from the IP header
LOAD_BYTE, LOAD_WORD, AND, EQUAL, ALWAYS, RETURN = 0x30, 0x20, 0x54, 0x15, 0x05, 0x06
IPV4_SOURCE, IPV6_SOURCE = 12, 8
Address = IPv4Address | IPv6Address


def build(folder: Path, hosts: Iterable[str]) -> Path:
    """The library, in a folder that is the caller's alone.

    Args:
        hosts: the IP addresses of the run's hosts; this host's own come in too.

    Raises:
        LaunchError: there is no compiler, or what it made does not work here.
    """
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        raise LaunchError(
            f"no C compiler here ({', '.join(COMPILERS)}): without one the run's ports would be open to every host: "
            "install gcc"
        )
    own = [ip for ips in network.nics().values() for ip in ips]
    hosts = list(hosts)
    rules = ",".join(f"{{{code},{yes},{no},{number}u}}" for code, yes, no, number in program([*own, *hosts]))
    made = folder / LIBRARY
    calls = folder / CALLS
    with calls.open("wb") as file:
        file.truncate((1 << 16) * CALL_BYTES)  # holes: a page is there once a call is written into it
    tables = [f"-DPROGRAM={rules}", f"-DOWN={_table([*own, '::1'])}", f"-DHOSTS={_table([*own, *hosts])}"]
    tables += [f"-DCALLS={json.dumps(str(calls.resolve()), ensure_ascii=False)}", f"-DCALL_BYTES={CALL_BYTES}"]
    command = [compiler, "-shared", "-fPIC", "-O2", *tables]
    _run([*command, "-o", str(made), str(SOURCE), "-ldl"], os.environ, "the door of the run's ports was not compiled")
    _run([sys.executable, "-S", "-c", TRY], preloaded(made, os.environ), f"{made} does not guard the run's ports")
    return made


def problems() -> list[str]:
    """Why no run can close its ports on this host, in a line; none where it can."""
    with tempfile.TemporaryDirectory(prefix="aq-door-") as folder:
        try:
            build(Path(folder), [])
        except LaunchError as error:
            return [str(error)]
    return []


def shown() -> str | None:
    """Why strangers find this host's ports open, though they are turned away; None where the ports are silent."""
    take_all = ctypes.create_string_buffer(struct.pack("HBBI", *Instruction(RETURN, 0, 0, TAKE)))
    filter_ = struct.pack("HP", 1, ctypes.addressof(take_all))  # struct sock_fprog
    with socket.socket() as tried:
        try:
            tried.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, filter_)
        except OSError as error:
            return (
                f"the kernel refuses this process socket filters ({error}): strangers find the run's ports open, and "
                "are turned away before a byte is read"
            )
    return None


def preloaded(library: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """An environment with the library before all others; Ray takes LD_PRELOAD from its workers unless it is told."""
    libraries = [str(library), environment.get("LD_PRELOAD")]
    return {**environment, "LD_PRELOAD": ":".join(filter(None, libraries)), "RAY_LD_PRELOAD_ON_WORKERS": "1"}


def _table(addresses: Iterable[str]) -> str:
    return ",".join(f"{{{','.join(map(str, _bytes(address)))}}}" for address in addresses)


def _bytes(address: str) -> bytes:
    ip: IPv4Address | IPv6Address = ip_address(address)
    return ip.packed if ip.version == 6 else b"\0" * 10 + b"\xff\xff" + ip.packed


def _run(command: list[str], environment: Mapping[str, str], failed: str) -> None:
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, errors="replace", timeout=SECONDS
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{failed}: {command[0]} has not ended after {SECONDS} s") from None
    if done.returncode or "cannot be preloaded" in done.stderr:
        said = done.stderr.strip().splitlines() or [f"{command[0]} ended with code {done.returncode}"]
        raise LaunchError(f"{failed}: {said[-1][:300]}")


class Instruction(NamedTuple):
    """struct sock_filter: what to do, how many instructions to jump if so and if not, and the number to do it with."""

    code: int
    yes: int
    no: int
    number: int


def program(addresses: Iterable[str]) -> list[Instruction]:
    """The filter that takes packets from the loopback and from these addresses, and drops all others."""
    known = dict.fromkeys(ip_address(one) for one in addresses)
    ipv4 = [part for one in known if one.version == 4 for part in _ipv4(one)]
    ipv6 = [part for one in (IPv6Address("::1"), *known) if one.version == 6 for part in _ipv6(one)]
    loopback = [
        Instruction(LOAD_WORD, 0, 0, NETWORK + IPV4_SOURCE),
        Instruction(AND, 0, 0, 0xFF000000),
        *_equal(0x7F000000),
        Instruction(LOAD_WORD, 0, 0, NETWORK + IPV4_SOURCE),
    ]
    ipv4 = [*loopback, *ipv4, Instruction(RETURN, 0, 0, DROP)]
    return [
        Instruction(LOAD_BYTE, 0, 0, NETWORK),
        Instruction(AND, 0, 0, 0xF0),
        Instruction(EQUAL, 1, 0, 0x40),  # IP's version
        Instruction(ALWAYS, 0, 0, len(ipv4)),
        *ipv4,
        *ipv6,
        Instruction(RETURN, 0, 0, DROP),
    ]


def _equal(word: int) -> list[Instruction]:
    """Take the packet if the word at hand is this."""
    return [Instruction(EQUAL, 0, 1, word), Instruction(RETURN, 0, 0, TAKE)]


def _ipv4(address: IPv4Address) -> list[Instruction]:
    return _equal(int(address))


def _ipv6(address: IPv6Address) -> list[Instruction]:
    """Take the packet if its four words are these."""
    words = [int.from_bytes(address.packed[place : place + 4], "big") for place in range(0, 16, 4)]
    parts = []
    for number, word in enumerate(words):
        left = 2 * (len(words) - number) - 1  # of this address, behind this comparison
        parts.append(Instruction(LOAD_WORD, 0, 0, NETWORK + IPV6_SOURCE + 4 * number))
        parts.append(Instruction(EQUAL, 0, left, word))
    return [*parts, Instruction(RETURN, 0, 0, TAKE)]
