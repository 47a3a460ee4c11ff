"""What a killed run leaves behind: shared-memory segments and socket files of verl's weight transfer.

A segment is removed when no living process maps it, a socket file when no living process has bound it. Anything in
use is left alone, and so is everything on a machine whose processes cannot all be seen from here.
"""

import logging
import os
from collections.abc import Iterator
from pathlib import Path

logger = logging.getLogger(__name__)

SEGMENTS = "verl_weights_*"
SOCKETS = "rl-colocate-zmq-*.sock"

# Linux gives the first namespace of each kind, the host's own, these fixed numbers.
HOST_IPC, HOST_PID = "ipc:[4026531839]", "pid:[4026531836]"


def remove_leftovers(shared_memory: Path = Path("/dev/shm"), sockets: Path = Path("/tmp")) -> list[Path]:
    """Remove what no living process uses, log each file, and return what was removed."""
    unused = [*_unused_segments(shared_memory), *_unused_sockets(sockets)]
    return [path for path in unused if _remove(path)]


def _unused_segments(folder: Path) -> list[Path]:
    found = [*folder.glob(SEGMENTS)]
    if found and _shares_memory_with_unseen_processes():
        logger.warning(
            "%d files %s/%s stay: this container shares the host's memory but not its process table, so a segment in "
            "use elsewhere would look unused (start the container with --pid=host)",
            len(found),
            folder,
            SEGMENTS,
        )
        return []
    mapped = set(_mapped_files()) if found else set()
    return [path for path in found if str(path) not in mapped]


def _unused_sockets(folder: Path) -> list[Path]:
    found = [*folder.glob(SOCKETS)]
    bound = _bound_sockets() if found else set()
    return [path for path in found if str(path) not in bound]


def _remove(path: Path) -> bool:
    try:
        path.unlink()
    except FileNotFoundError:  # another process of this run was faster
        return False
    except PermissionError:
        logger.warning("%s is left over, but belongs to another user: not removed", path)
        return False
    logger.warning("removed %s, left over from a run that no longer lives", path)
    return True


def _mapped_files() -> Iterator[str]:
    for maps in Path("/proc").glob("[0-9]*/maps"):
        try:
            text = maps.read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue  # it ended meanwhile; or another user's, whose segments we may not remove either
        for line in text.splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6:
                yield fields[5]


def _bound_sockets() -> set[str]:
    lines = Path("/proc/net/unix").read_text().splitlines()[1:]
    return {fields[7] for fields in (line.split(maxsplit=7) for line in lines) if len(fields) == 8}


def _shares_memory_with_unseen_processes() -> bool:
    return os.readlink("/proc/self/ns/ipc") == HOST_IPC and os.readlink("/proc/self/ns/pid") != HOST_PID
