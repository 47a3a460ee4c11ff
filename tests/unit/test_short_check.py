"""tests/conftest.py: a short check leaves out what is marked `long`, unless its subject has changed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parents[1] / "conftest.py"
TESTS = """
import pytest

@pytest.mark.long("subject")
def test_long(): pass

def test_short(): pass
"""
SETTINGS = "[pytest]\nmarkers = long\n  gpu\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with a commit in which subject/x and tests/unit/test_it.py lie."""
    for name, text in {"tests/unit/test_it.py": TESTS, "subject/x": "1", "other": "1", "pytest.ini": SETTINGS}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    shutil.copy(CONFTEST, tmp_path / "tests")
    git = ["git", "-C", tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "-c", "commit.gpgsign=false"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *arguments], check=True)
    return tmp_path


def run(checkout: Path, since: str | None) -> set[str]:
    """The tests that ran."""
    variables = {name: value for name, value in os.environ.items() if name not in ("SHORT_SINCE", "PYTEST_ADDOPTS")}
    variables |= {} if since is None else {"SHORT_SINCE": since}
    command = [sys.executable, "-m", "pytest", "-v", "-p", "no:cacheprovider", "tests/unit"]
    done = subprocess.run(command, cwd=checkout, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return {name for name in ("test_long", "test_short") if f"::{name} PASSED" in done.stdout}


@pytest.mark.parametrize(
    ("since", "changed", "ran"),
    [
        (None, "other", {"test_long", "test_short"}),  # a whole group
        ("", "subject/x", {"test_short"}),  # git knows no merge base
        ("HEAD", "other", {"test_short"}),
        ("HEAD", "subject/x", {"test_long", "test_short"}),
        ("HEAD", "tests/unit/test_it.py", {"test_long", "test_short"}),
    ],
)
def test_what_runs(checkout: Path, since: str | None, changed: str, ran: set[str]):
    with (checkout / changed).open("a") as file:
        file.write("\n")
    assert run(checkout, since) == ran
