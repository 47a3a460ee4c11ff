"""Every lock can be installed on both processors: the index has its versions, each with a file for the platform.

Nothing is downloaded but lists of files; uv says which one it would take, and looks at hashes where it takes one. What
only other indexes have is left out.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from launch.images.lock.packages import LOCKS, MACHINES, Lock, install_uv, parse

GLIBC = {"cuda13": "manylinux_2_39"}  # of Ubuntu 24.04; of the other images' bases, the oldest is Ubuntu 22.04's
OLDEST = "manylinux_2_35"
BUILT = "antlr4-python3-runtime"  # plain Python, without a wheel for anybody
NAMES = sorted(file.stem for file in LOCKS.glob("*.in") if file.stem not in ("npu-host", "npu-2.7", "npu-0.30"))


@pytest.fixture(scope="module")
def uv(tmp_path_factory) -> Path:
    """The one of uv.txt."""
    return install_uv(tmp_path_factory.mktemp("uv"))


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("name", NAMES)
def test_its_files_are_there_for_each_processor(uv: Path, name: str, machine: str, tmp_path: Path):
    lock = Lock(name)
    entries = [one for one in parse(lock.file.read_text()) if not one.version.endswith("+cpu")]
    (tmp_path / "lock.txt").write_text("".join(f"{one}\n" for one in entries))
    platform = f"--python-platform={machine}-{GLIBC.get(name, OLDEST)}"
    options = ["--dry-run", "--no-deps", "--require-hashes", "--only-binary=:all:", f"--no-binary={BUILT}"]
    target = [f"--target={tmp_path / 'there'}", f"--python-version={lock.python}", f"--python={sys.executable}"]
    command = [uv, "pip", "install", *options, platform, *target, "-r", tmp_path / "lock.txt"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    here = [one for one in entries if one.marker is None or machine in one.marker]
    assert f"Would install {len(here)} package" in done.stderr or not here
