"""A file that is written whole or not at all: on a full disk, or after a kill, what was there is there still.

Commands ask `why_no_file` before their work: hours of it would end in a traceback.
"""

import os
import shutil
from pathlib import Path


def why_no_file(file: Path, in_new_folders: bool = False) -> str | None:
    """Return why no file can be written there, as its name and its folder tell; None if one can.

    Args:
        in_new_folders: whether missing folders will be made.
    """
    if not file.name or file.is_dir():
        return f"{file}: is a folder; name a file"
    parent = Path(os.path.realpath(file)).parent
    return None if in_new_folders or parent.is_dir() else f"{file}: there is no folder {parent}"


def write_whole(file: Path, content: str | bytes) -> None:
    """Write `content` beside the file, text in UTF-8, then put it in its place. A link stays one; so does the mode.

    A device or a pipe is written to as it is.

    Raises:
        OSError: it cannot be written; what was there stays.
    """
    content = content.encode() if isinstance(content, str) else content
    if file.exists() and not file.is_file():
        file.write_bytes(content)
        return
    target = Path(os.path.realpath(file))
    new = target.parent / f".{target.name}.{os.getpid()}.new"
    new.unlink(missing_ok=True)  # of a process that was killed, and of the same number: in a container they all are 1
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
