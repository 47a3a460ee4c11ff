"""Where this project's files are (launch/, configs/, docker/): in a checkout, or where an image has put them.

launch/ is never installed: what it reads lies beside it. Whoever starts a process that needs it hands on `with_root`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
NEEDED = ("configs", "docker/stacks.yaml")
IS_CHECKOUT = (ROOT / "ascend_quant").is_dir()  # our images have the package installed, apart from these files


def absent(root: Path = ROOT) -> str | None:
    """What of the files is missing, in one line; None where all are there."""
    if lacking := [name for name in NEEDED if not (root / name).exists()]:
        there = f"{root} has launch/ without {' and '.join(lacking)}"
        return f"{there}: start the run.sh of a whole checkout, or an image; `pip install` brings `ascend-quant` alone"
    return None


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; none has a name that the system refuses."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def is_file(file: Path) -> bool:
    """Whether there is such a file; no file has a name that the system refuses."""
    try:
        return file.is_file()
    except (OSError, ValueError):
        return False


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; none has a name that the system refuses."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if is_folder(one))


def with_root(own: Mapping[str, str]) -> str:
    """PYTHONPATH for a process that starts anywhere: this folder before its own."""
    return os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
