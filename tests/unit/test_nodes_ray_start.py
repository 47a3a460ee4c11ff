"""A start that Ray gives up after its own 30 s, on a busy host: tried again until the hosts must have joined."""

import inspect
import os
import time
from pathlib import Path

import pytest
from cluster_cases import new_run, node_plan

from launch.errors import LaunchError
from launch.nodes.ray_node import GAVE_UP, RayNode
from launch.processes import MARK, of_run

# In place of Ray's command, which gives up only where it had to wait: a daemon outlives each start that fails.
RAY = """
import pathlib, subprocess, sys, time
starts = pathlib.Path(__file__).with_name('starts')
count = len(starts.read_text()) + 1
subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
starts.write_text('x' * count)
if count <= {failures}:
    raise {error}
time.sleep(600)
"""
TIMED_OUT = "Exception('The current node timed out during startup. The GCS may be overloaded.')"
OTHER = "RuntimeError('Version mismatch: 2.60.0 and 2.59.0')"


class Started:
    """A RayNode whose Ray fails so many times, and what it has told."""

    def __init__(self, folder: Path, failures: int, error: str, seconds: float) -> None:
        package = folder / "ray" / "scripts"
        package.mkdir(parents=True)
        for level in (package.parent, package):
            (level / "__init__.py").touch()  # or the real Ray would come first
        (package / "scripts.py").write_text(RAY.format(failures=failures, error=error))
        self.starts = package / "starts"
        self.starts.touch()
        self.notes: list[str] = []
        run = new_run()
        environment = os.environ | {"PYTHONPATH": str(folder), MARK: run}
        self.node = RayNode(node_plan(run), ["ray", "start"], environment, self.emit, time.monotonic() + seconds)

    def emit(self, kind: str, **more: object) -> None:
        if kind == "note":
            self.notes.append(str(more["line"]))

    def count(self) -> int:
        return len(self.starts.read_text())

    def check_until(self, count: int) -> None:
        """Check as the host's part does, until Ray was started so many times."""
        deadline = time.monotonic() + 60
        while self.count() < count and time.monotonic() < deadline:
            self.node.check()
            time.sleep(0.05)


@pytest.fixture
def start(tmp_path):
    made: list[Started] = []

    def of(failures: int, error: str = TIMED_OUT, seconds: float = 60) -> Started:
        made.append(Started(tmp_path, failures, error, seconds))
        return made[-1]

    yield of
    for started in made:
        started.node.end()


def test_it_starts_again_with_nothing_left_of_the_start_before(start):
    started = start(failures=2)
    started.check_until(3)
    started.node.check()
    assert (started.count(), len(started.notes)) == (3, 2)
    assert len(of_run(started.node.plan.run)) == 2, "more than the third start and its daemon"


@pytest.mark.parametrize(("error", "seconds"), [(OTHER, 60), (TIMED_OUT, 0)], ids=["another reason", "too late"])
def test_it_fails_with_what_ray_said(start, error, seconds):
    started = start(failures=9, error=error, seconds=seconds)
    with pytest.raises(LaunchError, match="timed out during startup" if error == TIMED_OUT else "2.60.0 and 2.59.0"):
        started.check_until(2)
    assert (started.count(), started.notes) == (1, [])


def test_these_are_still_the_words_of_ray():
    node = pytest.importorskip("ray._private.node")
    assert GAVE_UP in inspect.getsource(node.Node)
