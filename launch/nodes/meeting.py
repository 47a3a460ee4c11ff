"""What hosts share that no control host reaches (--on-this-node): Ray's token and the head's versions, in --out.

Only its owner can read the file. A worker reads it when the head's Ray is up, so it is this run's and no earlier one's.
"""

import json
import os
from pathlib import Path

from launch.errors import LaunchError
from launch.nodes.versions import skew


def share(file: Path, token: str, versions: dict[str, str]) -> None:
    """Of the head; an earlier run's file is replaced."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.unlink(missing_ok=True)
    with os.fdopen(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w") as opened:
        json.dump({"token": token, "versions": versions}, opened)


def take(file: Path, versions: dict[str, str]) -> str:
    """Of a worker: the token.

    Raises:
        LaunchError: the file is not there (the folder is not shared), is another user's, or the versions differ.
    """
    try:
        shared = json.loads(file.read_text())
    except OSError as error:
        raise LaunchError(
            f"{file} cannot be read ({error.strerror}), and the head has left Ray's token there: --out must be the "
            "same storage on every host (`shared` in the inventory), and the same user must run on all"
        ) from None
    if lines := skew(shared["versions"], versions):
        raise LaunchError(f"version skew: {'; '.join(lines)}")
    return shared["token"]
