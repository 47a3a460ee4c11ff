"""Launching: the demo on a laptop and training on clusters.

It uses ascend_quant through commands and files, and imports only the schemes' names. It is never installed: it reads
configs/ and docker/ next to it, in a checkout or in an image.
"""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IS_CHECKOUT = (ROOT / "ascend_quant").is_dir()  # our images have the package installed, apart from these files


class LaunchError(RuntimeError):
    """Raised for a launch that cannot go on; each line of the message says what is wrong and what to do."""


def existing(folder: Path) -> Path:
    """Return the folder, or the nearest above it that is there."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if os.path.isdir(one))


def with_root(own: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a process that starts anywhere: this folder before its own."""
    return os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
