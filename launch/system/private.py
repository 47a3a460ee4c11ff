"""Private folders and files: no other user can read them or could have created them."""

import os
import shlex
import stat
from contextlib import suppress
from pathlib import Path
from typing import TextIO

from launch import LaunchError

TEMPORARY = Path("/tmp")
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def run_folder(run: str) -> Path:
    """Return the folder of what a run needs on this host while it lives, Ray's sockets and logs too; nothing is made.

    The folder around it is what keeps others out, for Ray opens its own to everybody. The path is short, since Ray's
    sockets lie up to 65 characters deeper, and Linux takes 107.
    """
    return TEMPORARY / f"aq-{os.geteuid()}" / run


def make_folder(path: Path) -> Path:
    """Make a folder with mode 0700, or give that mode to one that is there and the caller's.

    Raises:
        LaunchError: there is something else of this name, or it is another user's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    _own(path, "folder")
    path.chmod(0o700)
    return path


def open_file(path: Path, mode: str) -> TextIO:
    """Open a file to write that only the caller reads; a link of this name is not followed."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def read(file: Path) -> bytes:
    """Read the bytes of a file that nobody else can have written: the two folders around it are looked at too.

    Raises:
        LaunchError: one of the three is a link, another user's, or others can write to it.
        OSError: it is not there, or cannot be read.
    """
    for path, kind in ((file.parents[1], "folder"), (file.parent, "folder"), (file, "file")):
        if _own(path, kind) & OTHERS_WRITE:
            raise LaunchError(
                f"{path} is writable by other users; if you trust its content, run: chmod go-w {shlex.quote(str(path))}"
            )
    return file.read_bytes()


def _own(path: Path, kind: str) -> int:
    """Return the mode of a caller's file or folder. Raises LaunchError where it is something else, or another's."""
    found = path.lstat()
    if not (stat.S_ISDIR(found.st_mode) if kind == "folder" else stat.S_ISREG(found.st_mode)):
        other = "a link, which is not followed" if stat.S_ISLNK(found.st_mode) else "something else"
        raise LaunchError(f"{path} must be a {kind}, not {other}")
    if found.st_uid != os.geteuid():
        raise LaunchError(
            f"{path} belongs to user {found.st_uid}, but you are user {os.geteuid()}, so it is not trusted: "
            "remove it, or use another path"
        )
    return found.st_mode
