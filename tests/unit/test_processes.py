"""The end of a process, with all that it has started and the shared memory of both."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from ascend_quant.processes.tree import ProcessTree, still_running


def test_the_tree_remembers_an_orphan():
    code = (
        "import subprocess, sys, time\n"
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True,"
        " stdout=subprocess.DEVNULL)\n"
        "print(p.pid, flush=True)\nsys.stdin.read()"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    tree, orphan = ProcessTree(parent.pid), psutil.Process(int(parent.stdout.readline()))
    tree.look()
    parent.communicate()
    assert orphan.is_running()
    tree.end()
    assert not still_running([orphan], 10)


@pytest.mark.parametrize("name", ["None", "f'verl_weights_{os.getpid()}'"])
def test_shared_memory_of_killed_members_is_removed(name: str):
    code = (
        "import os, sys, multiprocessing.shared_memory as m\n"
        f"s = m.SharedMemory({name}, create=True, size=64)\n"
        "m.resource_tracker.unregister(s._name, 'shared_memory')\nprint(s.name, flush=True)\nsys.stdin.read()"
    )
    ours, foreign = (
        subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    )
    tree = ProcessTree(ours.pid)
    segment, other = (Path("/dev/shm", process.stdout.readline().strip()) for process in (ours, foreign))
    assert segment.exists() and other.exists()
    tree.look()
    tree.end()
    assert not segment.exists() and other.exists()
    foreign.communicate()
    other.unlink()
