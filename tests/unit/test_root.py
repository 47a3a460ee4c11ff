"""Where launch/ finds this project's files: beside it, wherever it is started; and what it says where they are not."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_as_in_an_image_its_files_are_enough_and_the_package_is_installed(tmp_path: Path):
    """Without ascend_quant/ beside it, in any folder."""
    tree = tmp_path / "tree"
    for name in ("launch", "configs"):
        shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "docker").mkdir()
    shutil.copy(ROOT / "docker" / "stacks.yaml", tree / "docker")
    asked = "from launch import IS_CHECKOUT; from launch.recipes import load\n"
    asked += "print(IS_CHECKOUT, load('addition-int8').name)"
    environment = os.environ | {"PYTHONPATH": str(tree)}
    command = [sys.executable, "-c", asked]
    said = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["False", "addition-int8"]
