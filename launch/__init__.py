"""The launcher: training on this machine, on clusters, and on Ray clusters that already exist.

It uses ascend_quant through commands and files, and imports only the names of schemes. It is never installed, since it
reads configs/ and docker/ next to it, in a checkout or an image.
"""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IS_CHECKOUT = (ROOT / "ascend_quant").is_dir()  # false in our images, which have the package installed


class LaunchError(RuntimeError):
    """Raised if a launch cannot continue; each line of the message says what is wrong and what to do."""


def existing(folder: Path) -> Path:
    """Return the folder, or its nearest parent that exists."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if os.path.isdir(one))


def with_root(own: Mapping[str, str]) -> str:
    """Return PYTHONPATH for a process in any folder: this folder, then the process's own PYTHONPATH."""
    return os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
