"""The port guard: who reaches what a process behind it listens on; its filter, run beside Python's own addresses."""

import ctypes
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launch import LaunchError, port_guard

NOBODY = 65534
SERVE = """
import socket, sys, zmq
where, address = sys.argv[1:]
if where == "zmq":
    server = zmq.Context().socket(zmq.REP)
    print(server.bind_to_random_port(f"tcp://{address}"), flush=True)
    while True:
        server.send(server.recv())
unix = where == "unix"
server = socket.socket(socket.AF_UNIX if unix else socket.AF_INET6 if ":" in address else socket.AF_INET)
server.bind(address if unix else (address, 0))
server.listen()
if unix:
    import os
    os.chmod(address, 0o777)
server.setblocking(where != "blocking")
print(0 if unix else server.getsockname()[1], flush=True)
import errno, select
while True:
    select.select([server], [], [])
    try:
        server.accept()[0].sendall(b"hello")
    except OSError as error:
        assert error.errno in (errno.EAGAIN, errno.EPROTO), error
"""
ASK = """
import os, socket, sys
user, address, port = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
os.setgroups([])
os.setresuid(user, user, user)
client = socket.socket(socket.AF_UNIX if "/" in address else socket.AF_INET6 if ":" in address else socket.AF_INET)
client.settimeout(5)
try:
    client.connect(address if "/" in address else (address, port))
    if len(sys.argv) > 4:  # a word, and gone before the other end looks
        client.sendall(b"x")
        sys.exit()
    said = client.recv(5)
except ConnectionError:
    said = b""
print(said.decode(errors="replace"))
"""

LATE = """
import os, socket, subprocess, sys
ask, user, address = sys.argv[1:]
server = socket.create_server((address, 0))
for environment in (os.environ, {}):  # behind the guard, and not
    command = [sys.executable, "-I", "-c", ask, user, address, str(server.getsockname()[1]), "and go"]
    subprocess.run(command, check=True, env=environment)
    try:
        print(server.accept()[0].recv(5).decode())
    except OSError as error:
        print(error.errno)
"""


LOAD_BYTE, LOAD_WORD, AND, EQUAL, ALWAYS, RETURN = 0x30, 0x20, 0x54, 0x15, 0x05, 0x06  # of classic BPF
NETWORK = 0xFFF00000  # SKF_NET_OFF
TAKE, DROP = 0xFFFFFFFF, 0
Instruction = tuple[int, int, int, int]  # code, jump if so, jump if not, number


@pytest.fixture(scope="module")
def filter_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], list[Instruction]]:
    """filter_of(addresses): the instructions by which port_guard.c lets these in."""
    library = ctypes.CDLL(str(port_guard.build(tmp_path_factory.mktemp("guard"), [])))

    def of(addresses: list[str]) -> list[Instruction]:
        table = b"".join(map(port_guard.in_16_bytes, addresses))
        made = ctypes.create_string_buffer(8 * (12 + 9 * len(addresses)))
        size = library.aq_port_filter(made, table, ctypes.c_size_t(len(addresses)))
        return list(struct.iter_unpack("HBBI", made.raw[: 8 * size]))

    return of


def taken(program: list[Instruction], source: str) -> bool:
    """What the filter does with a packet: classic BPF as its definition has it."""
    address = ip_address(source)
    packet = bytearray(40)
    packet[0] = address.version << 4 | 5
    start = 12 if address.version == 4 else 8
    packet[start : start + len(address.packed)] = address.packed
    place = held = 0
    while True:
        code, yes, no, number = program[place]
        place += 1
        if code == LOAD_BYTE:
            held = packet[number - NETWORK]
        elif code == LOAD_WORD:
            held = struct.unpack_from("!I", packet, number - NETWORK)[0]
        elif code == AND:
            held &= number
        elif code == EQUAL:
            place += yes if held == number else no
        elif code == ALWAYS:
            place += number
        else:
            assert code == RETURN and number in (TAKE, DROP)
            return number == TAKE


ADDRESSES = st.ip_addresses().filter(lambda one: one.version == 4 or one.ipv4_mapped is None).map(str)


@settings(max_examples=30, deadline=None)
@given(st.lists(ADDRESSES, max_size=20), st.data())
def test_the_filter_takes_the_runs_hosts_and_the_loopback_alone(filter_of, hosts, data):
    program = filter_of(["::1", *hosts])
    for source in (*hosts, "127.0.0.1", "127.9.8.7", "::1"):
        assert taken(program, source)
    near = []
    for host in hosts:
        bits = bytearray(ip_address(host).packed)
        bits[data.draw(st.integers(0, len(bits) - 1))] ^= 1 << data.draw(st.integers(0, 7))
        near.append(str(ip_address(bytes(bits))))
    for source in (*near, "126.255.255.255", "128.0.0.1", "::2", "::ffff:127.0.0.1", "203.0.113.9", "2001:db8::9"):
        assert taken(program, source) == (source in (*hosts, "::1") or source.startswith("127."))


@pytest.fixture
def serve(tmp_path: Path) -> Iterator:
    """serve(where, address, user): a server behind a guard of no other host, and its port."""
    library, running = port_guard.build(tmp_path, []), []

    def start(where: str, address: str) -> int:
        command = [sys.executable, "-c", SERVE, where, address]
        environment = port_guard.preloaded(library, os.environ)
        running.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
        return int(running[-1].stdout.readline())

    yield start
    for process in running:
        assert process.poll() is None
        process.kill()
        process.communicate()


def answer(user: int, address: str, port: int, *more: str) -> str:
    """What a user gets to hear."""
    command = [sys.executable, "-I", "-c", ASK, str(user), address, str(port), *more]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="asks as another user, which needs root")
@pytest.mark.parametrize(
    ("where", "address"),
    [("polled", "::"), ("unix", "short"), ("zmq", "0.0.0.0")],
)
def test_another_user_of_this_host_is_not_heard_and_stops_nobody(serve, where, address):
    if where == "unix":
        address = f"/tmp/aq-test-{os.getpid()}.sock"
    try:
        port = serve(where, address)
        reached = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address, address)
        for _ in range(3):
            assert answer(NOBODY, reached, port) == ""
            answer(NOBODY, reached, port, "and go")
            assert answer(0, reached, port) != ""
    finally:
        Path(address).unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="asks by what changes its user, which needs root")
def test_who_has_gone_before_being_let_in_is_heard_if_behind_the_guard(tmp_path):
    """As NCCL calls: it connects, says its word and closes, and the other end accepts later."""
    command = [sys.executable, "-c", LATE, ASK, str(os.geteuid()), "127.0.0.1"]
    environment = port_guard.preloaded(port_guard.build(tmp_path, []), os.environ)
    done = subprocess.run(command, check=True, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["x", str(errno.EPROTO)]


def test_without_a_compiler_or_where_it_does_not_work_no_run_starts(tmp_path, monkeypatch):
    monkeypatch.setattr(port_guard, "COMPILERS", ("no-such-compiler",))
    with pytest.raises(LaunchError, match="no-such-compiler"):
        port_guard.build(tmp_path, [])
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho sorry >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setattr(port_guard, "COMPILERS", (str(broken),))
    with pytest.raises(LaunchError, match="sorry"):
        port_guard.build(tmp_path, [])
