"""Archives that are pinned by their hash, fetched and unpacked by the very step that image builds use."""

import subprocess
import sys
from pathlib import Path

from launch.errors import LaunchError
from launch.root import ROOT
from launch.stacks import File

STEP = ROOT / "docker" / "steps" / "archive.py"


def fetch(file: File, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        LaunchError: it was not reached, is another file than the pinned one, or no archive.
    """
    command = [sys.executable, str(STEP), file.address, file.sha256, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise LaunchError(done.stderr.strip())
