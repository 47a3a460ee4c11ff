"""This project as pip gets it: a wheel, a source distribution and an editable wheel, built from a copy of the tree."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = ("pyproject.toml", "README.md", "LICENSE")
FOLDERS = ("ascend_quant", "launch", "tools", "tests")  # the last three are there to be left out


def copy(folder: Path) -> Path:
    """The tree, without what a build of the checkout may have left in it."""
    folder.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, folder)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    return folder


def build(tree: Path, what: str, out: Path) -> Path:
    """build_wheel, build_sdist or build_editable of setuptools, as pip calls them."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"import sys; from setuptools.build_meta import {what}; {what}(sys.argv[1])"
    done = subprocess.run([sys.executable, "-c", code, str(out)], cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    (made,) = out.iterdir()
    return made


def unpack(archive: Path, folder: Path) -> Path:
    """A source distribution's only folder."""
    with tarfile.open(archive) as content:
        content.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return tree


def contents(wheel: Path) -> dict[str, bytes]:
    """The files of a wheel, without the list of them."""
    with zipfile.ZipFile(wheel) as content:
        return {name: content.read(name) for name in content.namelist() if not name.endswith("/RECORD")}
