"""Atomic file writes: on a full disk or after a kill, the previous content is unchanged.

Commands call `why_no_file` before they begin, so that hours of work do not end in an error.
"""

import os
import shutil
from pathlib import Path


def why_no_file(file: Path, in_new_folders: bool = False) -> str | None:
    """Return why no file can be written at a path, as far as name and folder tell; None if one can.

    Args:
        in_new_folders: whether missing folders will be created.
    """
    if not file.name or file.is_dir():
        return f"{file}: is a folder; name a file"
    parent = Path(os.path.realpath(file)).parent
    return None if in_new_folders or parent.is_dir() else f"{file}: there is no folder {parent}"


def write_whole(file: Path, content: str | bytes) -> None:
    """Write `content` (str as UTF-8) next to the file, then rename; keeps symbolic links and the mode.

    A device or a pipe is written directly.

    Raises:
        OSError: the file cannot be written; the previous content is kept.
    """
    content = content.encode() if isinstance(content, str) else content
    if file.exists() and not file.is_file():
        file.write_bytes(content)
        return
    target = Path(os.path.realpath(file))
    new = target.parent / f".{target.name}.{os.getpid()}.new"
    new.unlink(missing_ok=True)  # left by a killed process with the same id, as in containers, where it is always 1
    with open(new, "xb") as opened:
        try:
            opened.write(content)
            opened.flush()
            if target.exists():
                shutil.copymode(target, new)
            new.replace(target)
        except BaseException:
            new.unlink()
            raise
