"""Where launch/ finds this project's files: beside it, wherever it is started; and what it says where they are not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def start(folder: Path, path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`python -m launch` in a folder, with the launch/ of another."""
    command = [sys.executable, "-m", "launch", *arguments]
    environment = os.environ | {"PYTHONPATH": str(path)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)


def copied(folder: Path, *names: str) -> Path:
    for name in ("launch", *names):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            (folder / name).parent.mkdir(exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def test_as_in_an_image_its_files_are_enough_and_the_package_is_installed(tmp_path: Path):
    """Without ascend_quant/ beside it, in any folder."""
    tree = copied(tmp_path / "tree", "configs", "docker/stacks.yaml")
    done = start(tmp_path, tree, "recipe", "list", "--json")
    assert done.returncode == 0 and "addition-int8" in done.stdout, done.stderr
    asked = "from launch.root import IS_CHECKOUT; from launch.recipes import Paths, load, resolve\n"
    asked += "print(IS_CHECKOUT, *resolve(load('addition-int8'), Paths('/m', '/d', '/o')).files.values())"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", asked]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", str(tree / "launch/demo/reward.py")]
