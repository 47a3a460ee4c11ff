"""A wheelhouse of some packages of the cpu stack, made with an index, installed in a namespace without a network."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cluster.tools import need_namespaces

from launch.images import wheelhouse
from launch.images.lock.packages import parse
from launch.images.targets import LOCKS, target
from launch.images.wheelhouse import here

BUILT = "antlr4-python3-runtime"  # has no wheel: it is built on the host
KEPT = (BUILT, "numpy", "setuptools", "typing-extensions")
IMPORTS = "import antlr4, numpy, typing_extensions; from importlib.metadata import version; version('ascend-quant'); "
IMPORTS += "print(numpy.__version__)"


@pytest.fixture(params=["cpu.txt", "cpu.sdists.txt"])
def some_packages(request, tmp_path: Path, monkeypatch) -> None:
    """The lock of the cpu stack, cut down; what is built is in it, or in the list of what is built against it."""
    kept = [entry for entry in parse((LOCKS / "cpu-image.txt").read_text()) if entry.name in KEPT]
    assert len(kept) == len(KEPT)
    (tmp_path / "locks").mkdir()
    for name in ("cpu.txt", "cpu.sdists.txt"):
        there = [entry for entry in kept if (request.param if entry.name == BUILT else "cpu.txt") == name]
        (tmp_path / "locks" / name).write_text("".join(f"{entry}\n" for entry in there))
    monkeypatch.setattr("launch.images.targets.LOCKS", tmp_path / "locks")


def without_network(*command: object) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).resolve().parent}:/usr/local/bin:/usr/bin:/bin"
    bare = ["unshare", "--net", "env", "-i", f"PATH={path}", "HOME=/nonexistent"]
    return subprocess.run([*bare, *map(str, command)], capture_output=True, text=True, timeout=300)


def test_it_installs_without_a_network(some_packages, tmp_path: Path):
    need_namespaces()
    folder, venv = tmp_path / "bundle", tmp_path / "venv"
    cut = replace(target("cpu"), pins=target("cpu").pins.model_copy(update={"packages": {}}))
    missing = wheelhouse.bundle(cut, folder, here(), lambda what, done, total: None)
    assert missing == []
    installed = without_network(folder / "install.sh", venv)
    assert installed.returncode == 0, installed.stderr
    assert "cpu is ready" in installed.stderr
    lock = (folder / "lock.txt").read_text()

    shown = without_network(venv / "bin" / "python", "-I", "-c", IMPORTS)
    assert shown.returncode == 0, shown.stderr
    assert f"numpy=={shown.stdout.strip()} " in lock
