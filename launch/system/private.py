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
    """Return the path of a run's folder on this host, which also has Ray's sockets and logs; nothing is created.

    The parent folder denies access to others, since Ray makes its own folder world-accessible. The path is short,
    because Ray's sockets add up to 65 characters to it, and Linux's limit is 107.
    """
    return TEMPORARY / f"aq-{os.geteuid()}" / run


def make_folder(path: Path) -> Path:
    """Create a folder with mode 0700, or set that mode on the caller's existing folder.

    Raises:
        LaunchError: the name is not a folder, or it belongs to another user.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    _own(path, "folder")
    path.chmod(0o700)
    return path


def open_file(path: Path, mode: str) -> TextIO:
    """Open a file for writing that only the caller can read; symbolic links are not followed."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def plain(host: str) -> str:
    """Convert an address to a file name, since IPv6 addresses contain colons, and possibly a percent sign."""
    return host.replace(":", "_").replace("%", "_")


def read(file: Path) -> bytes:
    """Read the bytes of a file that nobody else can have written; its two parent folders are checked too.

    Raises:
        LaunchError: one of the three is a link, belongs to another user, or is writable by others.
        OSError: the file does not exist or cannot be read.
    """
    for path, kind in ((file.parents[1], "folder"), (file.parent, "folder"), (file, "file")):
        if _own(path, kind) & OTHERS_WRITE:
            raise LaunchError(
                f"{path} is writable by other users; if you trust its content, run: chmod go-w {shlex.quote(str(path))}"
            )
    return file.read_bytes()


def _own(path: Path, kind: str) -> int:
    """Return the mode of the caller's file or folder; raise LaunchError if it has another type or owner."""
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
