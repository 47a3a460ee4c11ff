"""Where this project's files are (launch/, configs/, docker/): in a checkout, or where an image has put them.

launch/ is never installed: what it reads lies beside it. Whoever starts a process that needs it hands on `with_root`.
"""

import os
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[1]
IS_CHECKOUT = (ROOT / "ascend_quant").is_dir()  # our images have the package installed, apart from these files


def existing(folder: Path) -> Path:
    """The folder, or the nearest above it that is there."""
    whole = folder.absolute()
    return next(one for one in (whole, *whole.parents) if os.path.isdir(one))


def with_root(own: Mapping[str, str]) -> str:
    """PYTHONPATH for a process that starts anywhere: this folder before its own."""
    return os.pathsep.join(filter(None, [str(ROOT), own.get("PYTHONPATH")]))
