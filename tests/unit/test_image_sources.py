"""docker/steps/sources.sh, which fetches what Ascend images are built from: exactly the commits, or a clear line."""

import subprocess
from pathlib import Path

import pytest
from images.vendor_sources import git, make

from launch.root import ROOT

STEP = ROOT / "docker" / "steps" / "sources.sh"


@pytest.fixture(scope="module")
def there(tmp_path_factory) -> tuple[str, dict[str, str]]:
    """The address of some repositories, and the commit of each that is pinned; their branches have moved on."""
    folder = tmp_path_factory.mktemp("repositories")
    address = f"file://{folder}"
    return address, make(folder, address)


def fetch(folder: Path, *sources: str) -> subprocess.CompletedProcess:
    return subprocess.run([STEP, folder, *sources], capture_output=True, text=True)


def place(folder: Path, address: str) -> Path:
    """Where the repository of an address is."""
    (found,) = (one for one in folder.glob("*.git") if git(one, "config", "remote.origin.url") == address)
    return found


def test_the_very_commit_and_nothing_later(there, tmp_path):
    address, commits = there
    done = fetch(tmp_path, *(f"{name}={address}/{name}@{commits[name]}#1.0" for name in ("vllm", "verl")))
    assert done.returncode == 0 and done.stderr == "", done
    for name in ("vllm", "verl"):
        assert (
            git(place(tmp_path, f"{address}/{name}"), "log", "--format=%H %s", "--all")
            == f"{commits[name]} what is pinned"
        )


def test_submodules_come_at_the_commits_that_are_named(there, tmp_path):
    address, commits = there
    done = fetch(tmp_path, f"vllm-ascend={address}/vllm-ascend@{commits['vllm-ascend']}")
    assert done.returncode == 0, done
    assert git(place(tmp_path, f"{address}/catlass"), "rev-parse", "HEAD") == commits["catlass"]


def test_two_commits_of_one_address(there, tmp_path):
    """As where a source is another one's submodule too: with or without .git, it is one repository."""
    address, commits = there
    later = git(Path(address.removeprefix("file://")) / "verl", "rev-parse", "HEAD")
    assert later != commits["verl"]
    done = fetch(tmp_path, f"one={address}/verl@{commits['verl']}", f"two={address}/verl@{later}")
    assert done.returncode == 0, done
    branches = git(place(tmp_path, f"{address}/verl"), "for-each-ref", "--format=%(refname:short)").splitlines()
    assert branches == sorted(f"pinned-{commit}" for commit in (commits["verl"], later))


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("verl={address}/verl@main", "'verl={address}/verl@main' is not NAME=REPOSITORY@COMMIT with all 40 digits"),
        ("verl={address}/verl@v0.9.1", "with all 40 digits"),
        ("verl={address}/verl@0123456", "with all 40 digits"),
        ("verl={address}/verl@" + "0" * 40, "no commit " + "0" * 40 + " could be fetched from {address}/verl"),
        ("verl={address}/nothing@" + "0" * 40, "could be fetched from {address}/nothing"),
    ],
)
def test_anything_else_is_refused_by_name(there, tmp_path, source, part):
    address, _ = there
    done = fetch(tmp_path, source.format(address=address))
    assert done.returncode != 0
    (ours,) = (line for line in done.stderr.splitlines() if line.startswith("sources.sh: "))
    assert part.format(address=address) in ours
