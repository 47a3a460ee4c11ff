"""run.sh and docker/locks/install.sh: what is wrong with what they are given is told before anything is started."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from naming import has_line_naming

ROOT = Path(__file__).parents[2]
INSTALL = Path("docker/locks/install.sh")


def shell(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess:
    """A command with this interpreter in place of the environment from the lock."""
    variables = os.environ | {"PYTHON": sys.executable} | environment
    return subprocess.run(arguments, capture_output=True, text=True, env=variables, timeout=120)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([""], "''"),
        (["setup", "--force"], "--force"),
        (["lint", "--nope"], "--nope"),
        (["test", ""], "''"),
        (["test", "@"], "'@'"),
    ],
)
def test_wrong_use_ends_with_2(arguments: list[str], named: str):
    said = shell(ROOT / "run.sh", *arguments)
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (2, "", 1)
    assert said.stderr.startswith("run.sh: ") and named in said.stderr


def test_help_needs_bash_alone(tmp_path: Path):
    """Nothing is installed for it; tests/unit/test_cli.py holds that the page says what the commands do."""
    (tmp_path / "docs").mkdir()
    for name in ("run.sh", "docs/cli.md", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    section = re.compile(r"^## \./run\.sh ([^\n]+)\n```text\n(.*?)^```", re.M | re.S)
    sections = section.findall((ROOT / "docs/cli.md").read_text())
    assert sections
    for command, text in sections:
        said = bare(tmp_path, *command.split(), "--help")
        assert (said.returncode, said.stdout.strip(), said.stderr) == (0, text.strip(), "")
    group = bare(tmp_path, "recipe", "--help").stdout
    assert all(text.strip() in group for command, text in sections if command.startswith("recipe "))
    for words in (["help"], ["--version"]):
        said = bare(tmp_path, *words)
        assert said.returncode == 0 and said.stdout and not said.stderr
    for command in ("test", "lint", "setup", "bench"):  # of which the usage alone speaks
        said = bare(tmp_path, command, "--help")
        there = re.findall(r"^  (\w+)", said.stdout, re.M)
        assert (said.returncode, set(there), said.stderr) == (0, {command}, "")
        assert there == [
            word for word in re.findall(r"^  (\w+)", bare(tmp_path, "help").stdout, re.M) if word == command
        ]
    assert {file.name for file in tmp_path.iterdir()} == {"run.sh", "docs", "pyproject.toml"}


def bare(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    """run.sh as on a machine without Python."""
    command = [folder / "run.sh", *arguments]
    return subprocess.run(command, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, timeout=20)


@pytest.mark.parametrize("python", ["/bin/true", "/bin/false", "/bin/echo"])
def test_an_interpreter_that_is_none(python: str):
    said = shell(ROOT / "run.sh", "recipe", "list", PYTHON=python)
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (2, "", 1) and python in said.stderr


def test_an_interpreter_without_the_stack(tmp_path: Path):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    said = shell(ROOT / "run.sh", "recipe", "list", PYTHON=str(bare))
    assert (said.returncode, said.stdout, len(said.stderr.splitlines())) == (2, "", 1)
    assert "typer" in said.stderr and str(bare) in said.stderr


def test_the_home_of_another_interpreter_is_left_out():
    said = shell(ROOT / "run.sh", "recipe", "show", "no-recipe", PYTHONHOME="/nowhere")
    assert said.stderr.startswith("no recipe 'no-recipe'")


def test_a_closed_stdout_is_no_success():
    said = shell("bash", "-c", 'exec "$0" recipe list >&-', ROOT / "run.sh")
    assert (said.returncode, len(said.stderr.splitlines())) == (2, 1)


@pytest.fixture
def checkouts(tmp_path: Path) -> list[Path]:
    """Two, of which install.sh alone is there."""
    made = [tmp_path / name for name in ("one", "other")]
    for checkout in made:
        (checkout / INSTALL.parent).mkdir(parents=True)
        shutil.copy(ROOT / INSTALL, checkout / INSTALL)
        for file in ("pyproject.toml", "lock.txt"):
            (checkout / file).write_text(str(checkout))
    return made


def test_an_environment_of_another_checkout_is_left_alone(checkouts: list[Path], tmp_path: Path):
    (one, other), venv = checkouts, tmp_path / "venv"
    (venv / ".ascend-quant").mkdir(parents=True)
    (venv / ".ascend-quant/project").write_text(f"{one}\n")
    (venv / "kept").touch()
    said = shell(other / INSTALL, venv, other / "lock.txt")
    assert said.returncode == 1 and has_line_naming(said.stderr, venv, f"checkout {one}")
    assert (venv / "kept").exists() and not (tmp_path / "venv.lock").exists()


def test_an_environment_made_ready_leaves_its_hard_linked_copies_as_they_are(checkouts: list[Path], tmp_path: Path):
    venv, lock = tmp_path / "venv", checkouts[0] / "lock.txt"
    mark, copy = venv / ".ascend-quant", tmp_path / "project"
    for folder in (mark, venv / "bin"):
        folder.mkdir(parents=True)
    (venv / "bin/python").symlink_to("/bin/true")  # whose pip installs all that is asked for
    (mark / "lock").write_text(f"{venv}\n{hashlib.sha256(lock.read_bytes()).hexdigest()}  -\n")
    copy.write_text("/nowhere\n")
    (mark / "project").hardlink_to(copy)
    said = shell(checkouts[0] / INSTALL, venv, lock)
    assert said.returncode == 0, said.stderr
    assert (mark / "project").read_text().splitlines()[0] == str(checkouts[0])
    assert copy.read_text() == "/nowhere\n" and {file.name for file in mark.iterdir()} == {"lock", "project"}


@pytest.mark.parametrize("place", ["file", "folder", "/", "/etc"])
def test_what_is_no_environment_gets_no_lock_beside_it(checkouts: list[Path], tmp_path: Path, place: str):
    venv = tmp_path / place
    (tmp_path / "folder").mkdir()
    for file in ("file", "folder/mine"):
        (tmp_path / file).touch()
    said = shell(checkouts[0] / INSTALL, venv, checkouts[0] / "lock.txt")
    assert said.returncode == 1 and has_line_naming(said.stderr, venv, "run.sh")
    assert not Path(f"{venv}.lock").exists() and not (venv / ".lock").exists()
