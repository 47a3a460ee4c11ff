"""The working directory of a run's Ray jobs: the job's files, and this project's packages.

Ray puts the directory on the Python path of every process of a job, before the packages that are installed on a node.
Therefore nodes do not need an installation of this project, and vLLM finds its plugin by the entry points in it.
"""

import shutil
from collections.abc import Mapping
from importlib.metadata import distribution
from pathlib import Path

from launch.recipes import stacks
from launch.system.software import own_packages

NAME = "ascend-quant"


def fill(folder: Path, files: Mapping[str, str]) -> None:
    """Write the job's files, this project's packages with their entry points, and the stacks' pins to a folder."""
    known = distribution(NAME)
    info = f"{NAME.replace('-', '_')}-{known.version}.dist-info"
    texts = {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {NAME}\nVersion: {known.version}\n",
        f"{info}/entry_points.txt": known.read_text("entry_points.txt"),
        f"docker/{stacks.FILE.name}": stacks.FILE.read_text(),
    }
    for package in own_packages():
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in {**texts, **files}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
