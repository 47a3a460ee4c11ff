"""Folders and files that are the caller's alone: no other user reads them, and none can have put them there.

What lies in a folder is no safer than the folder, so a path is walked from the first folder that has to be the
caller's, each step from the one before it, and no link is followed.
"""

import os
import shlex
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TextIO

from launch.errors import LaunchError

TEMPORARY = Path("/tmp")
LONGEST_RUN_FOLDER = 42  # Ray's sockets lie up to 65 characters deeper, and Linux takes 107
OTHERS = stat.S_IRWXG | stat.S_IRWXO
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def run_folder(run: str) -> Path:
    """Where what a run needs while it lives is to lie on this host, Ray's sockets and logs too; nothing is made.

    It is below XDG_RUNTIME_DIR where that is the caller's alone and short enough, else below a folder of the caller's
    in /tmp. The folder around it is what keeps others out, for Ray opens its own to everybody.
    """
    given = Path(os.environ.get("XDG_RUNTIME_DIR") or "nowhere")
    folder = given / "aq" / run
    if given.is_absolute() and len(str(folder)) <= LONGEST_RUN_FOLDER and _is_private(given):
        return folder
    return TEMPORARY / f"aq-{os.geteuid()}" / run


def make_folder(path: Path) -> Path:
    """Make a folder with mode 0700, or give that mode to one that is there and the caller's.

    Raises:
        LaunchError: there is something else of this name, or it is another user's.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    with _opened(str(path), FOLDER, path) as folder:
        os.fchmod(folder, 0o700)
    return path


def open_file(path: Path, mode: str) -> TextIO:
    """A file to write that only the caller reads; a link of this name is not followed."""
    return open(path, mode, encoding="utf-8", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, 0o600))


def read(top: Path, names: Sequence[str], largest: int) -> str:
    """The text of the file top/names[0]/names[1]/...

    Raises:
        LaunchError: it or a folder from `top` on is a link, another user's, or others can write to it; or it has more
            than `largest` bytes, or other bytes than UTF-8.
        OSError: it is not there, or cannot be read.
    """
    with ExitStack() as stack:
        where, held = top, stack.enter_context(_opened(str(top), FOLDER, top))
        _check_writers(held, where)
        for number, name in enumerate(names, start=1):
            where /= name
            held = stack.enter_context(_opened(name, FOLDER if number < len(names) else FILE, where, held))
            _check_writers(held, where)
        return _text(held, where, largest)


def _is_private(folder: Path) -> bool:
    try:
        found = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & OTHERS


@contextmanager
def _opened(name: str, flags: int, path: Path, above: int | None = None) -> Iterator[int]:
    """An open file or folder of the caller's; what is put in its place meanwhile is not taken."""
    mode = os.stat(name, dir_fd=above, follow_symlinks=False).st_mode
    if not (stat.S_ISDIR(mode) if flags == FOLDER else stat.S_ISREG(mode)):
        kind = "a link, which is not followed" if stat.S_ISLNK(mode) else "something else"
        raise LaunchError(f"{path} should be a {'folder' if flags == FOLDER else 'file'}, and is {kind}")
    opened = os.open(name, flags, dir_fd=above)
    try:
        owner = os.fstat(opened).st_uid
        if owner != os.geteuid():
            raise LaunchError(f"{path} belongs to user {owner}, and you are user {os.geteuid()}: it is not trusted")
        yield opened
    finally:
        os.close(opened)


def _check_writers(opened: int, path: Path) -> None:
    if os.fstat(opened).st_mode & OTHERS_WRITE:
        raise LaunchError(
            f"{path} can be written by others; if all of it is yours: chmod go-w {shlex.quote(str(path))}"
        )


def _text(opened: int, path: Path, largest: int) -> str:
    with os.fdopen(opened, "rb", closefd=False) as file:
        content = file.read(largest + 1)
    if len(content) > largest:
        raise LaunchError(f"{path} has more than {largest} bytes")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise LaunchError(f"{path} is no UTF-8: {error}") from error
