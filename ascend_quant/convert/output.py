"""The output folder OUT, created atomically: it is written as OUT.partial and renamed at the end.

OUT.partial contains the manifest, which records the conversion from the start, and finished files. A file is called
*.writing until it is complete and on disk (fsync), then renamed. So the same command resumes an interrupted
conversion, and another command is refused.
"""

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from ascend_quant.convert.formats import Spec
from ascend_quant.convert.shard_file import Layout
from ascend_quant.convert.source import MANIFEST
from ascend_quant.files.documents import read_json
from ascend_quant.profile.checkpoints import BadCheckpoint

WRITING = ".writing"
MODIFIED = "modified"  # key of a request: modification times of IN's files, which the finished manifest omits


class Output:
    """The folder OUT.partial, to which one process at a time may write."""

    def __init__(self, out: Path):
        self.out = out.resolve()
        self.partial = self.out.parent / f"{self.out.name}.partial"

    def check(self, source: Path) -> None:
        """Raise BadCheckpoint if OUT is in IN, contains IN, or fails `check_new`."""
        source = source.resolve()
        if self.out == source or source in self.out.parents or self.out in source.parents:
            raise BadCheckpoint(f"{self.out} and {source} are the same folder or nested; give another OUT")
        self.check_new()

    def check_new(self) -> None:
        """Raise BadCheckpoint unless OUT can be created, or is an empty folder that can be replaced."""
        if not self.out.parent.is_dir():
            raise BadCheckpoint(f"{self.out.parent} does not exist or is not a folder; create it first")
        if self.out.is_dir() and os.path.ismount(self.out):
            raise BadCheckpoint(
                f"{self.out} is a mount point, which the output cannot be renamed to; give a folder inside it"
            )
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise BadCheckpoint(f"{self.out} is not empty; give a new folder")

    @contextmanager
    def open(self, request: Mapping, names: Set[str]) -> Iterator[None]:
        """Begin, or resume the same request, and lock the folder; OUT exists after the block.

        Args:
            names: relative paths of all files of OUT.

        Raises:
            BadCheckpoint: another request has begun here, another command is running, or OUT.partial has a foreign
                file.
        """
        self.partial.mkdir(exist_ok=True)
        lock = os.open(self.partial, os.O_RDONLY)
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BadCheckpoint(
                    f"another command is writing {self.partial}; wait for it to finish, or stop it"
                ) from error
            self._begin(request, names)
            yield
            os.rename(self.partial, self.out)  # replaces an empty folder
            sync(self.out.parent)
        finally:
            os.close(lock)

    def _begin(self, request: Mapping, names: Set[str]) -> None:
        """Record the request in the manifest, or compare it with the recorded one."""
        held = {path.relative_to(self.partial) for path in self.partial.rglob("*") if not path.is_dir()}
        known = {name + suffix for name in names for suffix in ("", WRITING)}
        begun = (self.partial / MANIFEST).is_file()
        if strange := sorted(set(map(str, held)) - (known if begun else {f"{MANIFEST}{WRITING}"})):
            raise BadCheckpoint(
                f"{self.partial / strange[0]} does not belong to an unfinished conversion; move it away"
            )
        if not begun:
            self.add(MANIFEST, as_json(request))
        before = read_json(self.partial / MANIFEST)
        for key, value in request.items():
            if key in before and before[key] != value:
                changed = key in ("source", MODIFIED)
                what = "IN has changed since" if changed else f"{key} {before[key]!r}, now {value!r}"
                again = f"finish that one, or remove {self.partial}"
                raise BadCheckpoint(f"{self.partial} was started by another command ({what}); {again}")

    def has_finished(self, shard: str, specs: Mapping[str, Spec]) -> bool:
        """Return whether an earlier run has finished a shard with this header and size."""
        return Layout(specs).fits(self.partial / shard)

    def writing(self, name: str) -> Path:
        """Return the path at which a file is written until it is finished."""
        return self.partial / f"{name}{WRITING}"

    def finish(self, name: str) -> None:
        """Rename a file that is on disk to its final name."""
        path = self.writing(name).rename(self.partial / name)
        sync(path.parent)

    def add(self, name: str, content: Path | str) -> None:
        """Add a small file: a copy, or a text in UTF-8."""
        path = self.writing(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content.encode())
        with path.open("rb") as file:
            os.fsync(file.fileno())
        self.finish(name)


def as_json(content: object) -> str:
    """Return the text of a JSON file of OUT."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def check_room(folder: Path, needed: int) -> None:
    """Raise BadCheckpoint if a disk has less than `needed` bytes free."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise BadCheckpoint(f"not enough disk space for {folder}: {needed:,} bytes needed, {free:,} free")


def sync(folder: Path) -> None:
    """Flush a folder's entries to disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
