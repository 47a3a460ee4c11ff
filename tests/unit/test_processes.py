"""Other programs: the output of one that is asked, or why there is none; their end, with all that they have started."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from naming import has_line_naming

from ascend_quant.processes.tree import ProcessTree, still_running
from launch.system.processes import ask


@pytest.mark.parametrize(
    ("script", "seconds", "said"),
    [
        ("sleep 60", 0.2, "did not answer"),
        ("sleep 60 & exit 0", 0.2, "did not answer"),  # what it started holds its output
    ],
)
def test_a_program_without_an_end_is_ended(tmp_path: Path, script: str, seconds: float, said: str):
    answer = ask(["bash", "-c", f"echo $$ > {tmp_path}/group; {script}"], seconds)
    assert (answer.output, said in answer.problem) == ("", True)
    group = int((tmp_path / "group").read_text())
    started = [one for one in psutil.process_iter() if group_of(one.pid) == group]
    assert not still_running(started, 20)


def group_of(pid: int) -> int | None:
    """The process group of any process of this machine; None when it has just ended."""
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def test_why_a_program_gave_no_answer():
    text, problem = ask(["bash", "-c", r"echo half; printf 'brok\377n' >&2; exit 3"])
    assert text == "half\n" and has_line_naming(problem, "bash -c", "with 3: brok\ufffdn")
    assert has_line_naming(ask(["no-such-program"]).problem, "no-such-program", "PATH")


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
