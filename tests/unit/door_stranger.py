"""In a network namespace of its own: a server behind a door that one neighbour may pass, and two who knock.

python door_stranger.py, as root: ends with 0 when the peer is heard, and the stranger finds no port, or hears nothing
where the kernel refuses filters.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from test_door import ASK, SERVE

from launch import door

SERVER, PEER, STRANGER = "10.79.0.1", "10.79.0.2", "10.79.0.3"
KNOCK = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 1); print('open')"


def ip(*words: str, target: int | None = None) -> None:
    inside = ["nsenter", f"--target={target}", "--net"] if target else []
    subprocess.run([*inside, "ip", *words], check=True)


def neighbour(name: str, *addresses: str) -> subprocess.Popen:
    """A process in another network namespace, wired to the bridge of this one."""
    process = subprocess.Popen(["unshare", "--net", "sleep", "100"])
    while os.readlink(f"/proc/{process.pid}/ns/net") == os.readlink("/proc/self/ns/net"):
        pass
    ip("link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(process.pid))
    ip("link", "set", name, "master", "bridge", "up")
    for address in addresses:
        ip("address", "add", f"{address}/24", "dev", "eth0", target=process.pid)
    ip("link", "set", "eth0", "up", target=process.pid)
    return process


def asked(by: subprocess.Popen, code: str, *words: str) -> str:
    command = ["nsenter", f"--target={by.pid}", "--net", sys.executable, "-I", "-c", code, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()


def main() -> None:
    ip("link", "set", "lo", "up")
    ip("link", "add", "bridge", "type", "bridge")
    ip("address", "add", f"{SERVER}/24", "dev", "bridge")
    ip("link", "set", "bridge", "up")
    peer, stranger = neighbour("cable1", PEER), neighbour("cable2", STRANGER)
    with tempfile.TemporaryDirectory() as silent, tempfile.TemporaryDirectory() as shown:
        library = door.build(Path(silent), [PEER])
        door.program = lambda hosts: []  # which the kernel refuses
        without_filter = door.build(Path(shown), [PEER])
        for environment, found in (
            (os.environ, ("open", "hello")),
            (door.preloaded(library, os.environ), ("", "")),
            (door.preloaded(without_filter, os.environ), ("open", "")),
        ):
            command = [sys.executable, "-c", SERVE, "polled", "0.0.0.0"]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
                port = server.stdout.readline().strip()
                knocked = asked(stranger, KNOCK, SERVER, port), asked(stranger, ASK, "0", SERVER, port)
                heard = asked(peer, ASK, "0", SERVER, port)
                server.kill()
            assert (heard, knocked) == ("hello", found), (heard, knocked, found)
    for one in (peer, stranger):
        one.kill()
        one.wait()


main()
