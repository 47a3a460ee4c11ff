"""Leftovers of killed runs go; what a living process uses stays. With real processes, killed for real."""

import logging
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path

import pytest

from ascend_quant.integrations.verl import leftovers

pytestmark = pytest.mark.skipif(not Path("/proc/net/unix").exists(), reason="needs Linux's /proc")

HOLD = """
import mmap, os, socket, sys, time
segment = os.open(sys.argv[1], os.O_CREAT | os.O_RDWR); os.ftruncate(segment, 4096)
mapped = mmap.mmap(segment, 4096); os.close(segment)
server = socket.socket(socket.AF_UNIX); server.bind(sys.argv[2])
print("ready", flush=True); time.sleep(600)
"""


class Run:
    """A process that maps a segment and binds a socket, as a run in the middle of a sync does."""

    def __init__(self, folder: Path):
        name = f"test-{uuid.uuid4().hex}"
        self.segment = Path("/dev/shm") / f"verl_weights_{name}"
        self.socket = folder / f"rl-colocate-zmq-{name}.sock"
        command = [sys.executable, "-c", HOLD, str(self.segment), str(self.socket)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout.readline() == "ready\n"

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=30)


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory(prefix="aq-") as name:  # pytest's own folders are too long for a socket
        yield Path(name)


@pytest.fixture
def two_runs(folder):
    runs = [Run(folder), Run(folder)]
    yield runs
    for run in runs:
        run.kill()
        run.segment.unlink(missing_ok=True)


def test_removes_the_dead_and_keeps_the_living(two_runs, folder, caplog):
    dead, living = two_runs
    dead.kill()
    with caplog.at_level(logging.WARNING):
        removed = leftovers.remove_leftovers(sockets=folder)
    assert {dead.segment, dead.socket} <= set(removed)
    assert not dead.segment.exists() and not dead.socket.exists()
    assert living.segment.exists() and living.socket.exists()
    assert all(str(path) in caplog.text for path in removed)


def test_other_files_and_shared_memory_of_unseen_processes_stay(tmp_path, monkeypatch, caplog):
    old = tmp_path / "verl_weights_old"
    for path in (*(tmp_path / name for name in ("weights", "verl_weights", "rl-colocate.sock")), old):
        path.touch()
    assert leftovers.remove_leftovers(tmp_path, tmp_path) == [old] and len([*tmp_path.iterdir()]) == 3
    old.touch()
    namespaces = {"/proc/self/ns/ipc": leftovers.HOST_IPC, "/proc/self/ns/pid": "pid:[4026532000]"}
    monkeypatch.setattr(leftovers.os, "readlink", namespaces.__getitem__)
    with caplog.at_level(logging.WARNING):
        assert leftovers.remove_leftovers(tmp_path, tmp_path) == []
    assert "--pid=host" in caplog.text
