"""A file that is written whole or not at all: on a full disk, or after a kill, what was there is there still."""

import os
import shutil
from pathlib import Path


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
