"""The manifest of an image, read from within: here of this environment, beside what pip and the test itself know."""

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from launch import manifest as inside

OURS = {"ASCEND_QUANT_STACK": "cpu", "ASCEND_QUANT_REVISION": "0123456789abcdef0123456789abcdef01234567"}
DPKG = """#!/bin/sh
echo "installed bash:amd64 5.2.15-2+b7"
echo "config-files gone:amd64 1.0"
echo "not-installed never:amd64 "
"""


@pytest.fixture
def debian(tmp_path: Path, monkeypatch) -> None:
    """A dpkg-query that tells of one package that is installed, and of two that are not."""
    (tmp_path / "dpkg-query").write_text(DPKG)
    (tmp_path / "dpkg-query").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture
def openeuler(tmp_path: Path, monkeypatch) -> None:
    """A system with rpm and without dpkg-query."""
    (tmp_path / "rpm").write_text('#!/bin/sh\nprintf "%s\\n" "installed bash:aarch64 5.2.15-9.oe2403"\n')
    (tmp_path / "rpm").chmod(0o755)
    for tool in ("sh", "env"):
        (tmp_path / tool).symlink_to(f"/bin/{tool}")
    monkeypatch.setenv("PATH", str(tmp_path))


def listed_by_pip() -> dict[str, str]:
    """The packages of this environment, by pip."""
    command = [sys.executable, "-I", "-m", "pip", "--disable-pip-version-check", "list", "--format", "json"]
    listed = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    return {one["name"].lower().replace("_", "-").replace(".", "-"): one["version"] for one in listed}


@pytest.mark.usefixtures("debian")
def test_of_this_environment():
    found = inside.manifest(OURS)
    assert {name: package["version"] for name, package in found["packages"].items()} == listed_by_pip()
    assert found["system_packages"] == {"bash:amd64": "5.2.15-2+b7"}
    assert (found["stack"], found["chip"], found["revision"]) == ("cpu", None, OURS["ASCEND_QUANT_REVISION"])
    assert (found["python"], found["architecture"]) == (platform.python_version(), platform.machine())
    assert found["system"].split()[0] in Path("/etc/os-release").read_text()
    assert found["cuda"] is None, "torch is a CPU build"


@pytest.mark.usefixtures("openeuler")
def test_on_openeuler_the_systems_packages_are_rpms():
    assert inside.system_packages() == {"bash:aarch64": "5.2.15-9.oe2403"}


def test_packages_of_other_folders_do_not_count(tmp_path: Path, monkeypatch):
    metadata = tmp_path / "te-0.4.0.dist-info" / "METADATA"  # as CANN's, by PYTHONPATH
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: te\nVersion: 0.4.0\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "te" not in inside.packages() and "torch" in inside.packages()


def test_outside_of_an_image_it_names_the_variable_that_is_not_set():
    command = [sys.executable, "-m", "launch.manifest"]
    bare = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_QUANT_")}
    done = subprocess.run(command, env=bare, capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == "" and "ASCEND_QUANT_STACK" in done.stderr
    assert len(done.stderr.splitlines()) == 1
