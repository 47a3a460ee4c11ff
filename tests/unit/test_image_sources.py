"""docker/steps/sources.sh, which fetches what Ascend images are built from: exactly the commits, or a clear line."""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from images.vendor_sources import git, make
from naming import has_line_naming

from launch import ROOT

STEPS = ROOT / "docker" / "steps"
STEP = STEPS / "sources.sh"
CLONE = """# pip's own clone of a requirement, with the submodules, before it builds
import sys
from pip._internal.utils.misc import hide_url
from pip._internal.vcs.git import Git

Git().obtain(sys.argv[2], hide_url(sys.argv[1]), verbosity=0)
"""


@pytest.fixture(scope="module")
def there(tmp_path_factory) -> tuple[str, dict[str, str]]:
    """The address of some repositories, and the commit of each that is pinned; their branches have moved on."""
    folder = tmp_path_factory.mktemp("repositories")
    address = f"file://{folder}"
    return address, make(folder, address)


def fetch(folder: Path, *sources: str) -> subprocess.CompletedProcess:
    return subprocess.run([STEP, folder, *sources], capture_output=True, text=True)


def archive(folder: Path, kind: str, *files: str) -> tuple[str, str]:
    """An archive with these files, each with its own path in it; its address and its hash."""
    for path in files:
        (folder / "content" / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / "content" / path).write_text(path)
    file = Path(shutil.make_archive(str(folder / "archive"), kind, folder / "content"))
    return f"file://{file}", hashlib.sha256(file.read_bytes()).hexdigest()


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


@pytest.mark.parametrize(
    ("kind", "files", "unpacked"),
    [
        ("zip", ["include/a.h", "LICENSE"], ["LICENSE", "include/a.h"]),
        ("gztar", ["patch1/a.sh", "patch1/b/c"], ["a.sh", "b/c"]),  # as CMake does: one folder at the top is left out
        ("zip", ["only.h"], ["only.h"]),
    ],
)
def test_an_archive_of_the_pinned_hash_is_unpacked_for_its_source(tmp_path, kind, files, unpacked):
    address, digest = archive(tmp_path, kind, *files)
    done = fetch(tmp_path / "src", f"vllm-ascend/csrc/third_party/json={address}#sha256:{digest}")
    assert done.returncode == 0 and digest in done.stdout, done
    folder = tmp_path / "src" / "files" / "vllm-ascend" / "csrc" / "third_party" / "json"
    assert sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()) == unpacked
    assert (folder / unpacked[0]).read_text().endswith(unpacked[0])


def test_an_archive_of_another_hash_leaves_nothing(tmp_path):
    address, digest = archive(tmp_path, "zip", "a.h")
    for wanted, where, says in (
        ("0" * 64, address, digest),
        ("0" * 63, address, "is no sha256"),
        (digest, f"{address}.gone", "could not be fetched"),
        (hashlib.sha256(b"text").hexdigest(), f"file://{tmp_path}/text.zip", "is no archive"),
    ):
        (tmp_path / "text.zip").write_bytes(b"text")
        done = fetch(tmp_path / "src", f"one/place={where}#sha256:{wanted}")
        assert done.returncode and says in done.stderr and has_line_naming(done.stderr, "sources.sh:", "one/place"), (
            done
        )
        assert not (tmp_path / "src").exists()


def test_pips_clone_gets_the_archives_before_the_build_and_its_submodules_do_not(there, tmp_path):
    """As from_source.sh does it, with the hook of docker/steps: the package is built by its commit all the same."""
    address, commits = there
    (tmp_path / "files" / "csrc").mkdir(parents=True)
    (tmp_path / "files" / "csrc" / "fetched.h").write_text("here")
    settings = {"core.hooksPath": str(STEPS / "hooks"), "protocol.file.allow": "always"}
    environment = {f"GIT_CONFIG_KEY_{i}": name for i, name in enumerate(settings)}
    environment |= {f"GIT_CONFIG_VALUE_{i}": value for i, value in enumerate(settings.values())}
    environment |= {"GIT_CONFIG_COUNT": str(len(settings)), "FILES": str(tmp_path / "files")}
    source = f"git+{address}/vllm-ascend@{commits['vllm-ascend']}"
    command = [sys.executable, "-c", CLONE, source, str(tmp_path / "clone")]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | environment)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "clone" / "csrc" / "fetched.h").read_text() == "here"
    submodule = tmp_path / "clone" / "csrc" / "third_party" / "catlass"
    assert (submodule / "include" / "catlass.hpp").exists() and not (submodule / "csrc").exists()
    assert git(tmp_path / "clone", "rev-parse", "HEAD") == commits["vllm-ascend"]


def test_from_source_gives_each_source_its_own_archives():
    step = (STEPS / "from_source.sh").read_text()
    assert (STEPS / "hooks" / "post-checkout").stat().st_mode & 0o111
    assert 'core.hooksPath "$HOOKS"' in step and "FILES=/src/files/$name" in step
