"""OUT, which appears whole or not at all: it is written as OUT.partial and renamed at the end.

    OUT.partial/model/        finished files under their final names, and *.writing
    OUT.partial/journal/      request.json: what is converted, and how; SHARD.json: the digest of a finished shard
    OUT.partial/lock          held while a command is at work

A finished shard and its digest are on disk (fsync) before the next one begins, so that the same command goes on where a
killed one ended. Another command is refused.
"""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path

from ascend_quant.convert.errors import ConvertError
from ascend_quant.convert.formats import Spec
from ascend_quant.convert.shard_file import Digest, Layout, digest_of
from ascend_quant.convert.source import MANIFEST, check_name
from ascend_quant.documents import BadDocument, read_json

WRITING = ".writing"
MODIFIED = "modified"  # of a request: the times of IN's files, which are no part of the manifest


class Output:
    """OUT.partial, which one process at a time may write.

    Raises:
        ConvertError: OUT can be no folder's name.
    """

    def __init__(self, out: Path):
        check_name(out)
        try:
            self.out = out.resolve()
        except (OSError, RuntimeError) as error:  # of a link to itself, in Python 3.13 and before
            raise ConvertError(f"{out} cannot be a folder: {error}") from error
        if not self.out.name or self.out == Path.cwd():
            raise ConvertError(f"{self.out} is the root or the working folder, which cannot be replaced; give another")
        self.partial = self.out.with_name(f"{self.out.name}.partial")
        self.model, self.journal = self.partial / "model", self.partial / "journal"

    def check(self, source: Path) -> None:
        """Raise ConvertError where OUT cannot be: in IN, around it, not empty, without a parent."""
        source = source.resolve()
        if self.out == source or source in self.out.parents or self.out in source.parents:
            raise ConvertError(f"{self.out} and {source} are the same folder, or one is in the other; give another OUT")
        if not self.out.parent.is_dir():
            raise ConvertError(f"{self.out.parent} is no folder; make it first")
        if self.out.is_dir() and os.path.ismount(self.out):
            raise ConvertError(f"{self.out} is a mount point, which nothing can be renamed to; give a folder in it")
        if self.out.exists() and (not self.out.is_dir() or any(self.out.iterdir())):
            raise ConvertError(f"{self.out} is not empty; give a new folder")

    def was_renamed(self, request: Mapping) -> bool:
        """Whether this request, of IN as it is now, was killed when OUT was whole and OUT.partial not yet gone."""
        manifest, noted = self.out / MANIFEST, self.journal / "request.json"
        if self.partial.is_symlink() or not (manifest.is_file() and noted.is_file()):
            return False
        left = {path.relative_to(self.partial) for path in self.partial.rglob("*")} - {Path("lock"), Path("journal")}
        if any(path.parts[0] != "journal" or ".json" not in path.suffixes for path in left):  # model/, or the user's
            return False
        content = _read(manifest)
        same = all(content.get(key) == value for key, value in request.items() if key != MODIFIED)
        return same and _read(noted) == request

    @contextmanager
    def open(self, request: Mapping, names: Set[str]) -> Iterator[None]:
        """Begin, or go on where the same request ended; nobody else does meanwhile.

        Args:
            names: of all files of OUT, as paths within it.

        Raises:
            ConvertError: another request has begun here, a command is at work, or OUT.partial holds what is none of
                OUT's.
        """
        self._check_partial(names)
        for folder in (self.partial, self.model, self.journal):
            folder.mkdir(exist_ok=True)
        with (self.partial / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ConvertError(f"another command is writing {self.partial}; wait for it, or end it") from error
            self._check_request(request)
            yield

    def _check_partial(self, names: Set[str]) -> None:
        """All of OUT.partial/model is published in the end."""
        if self.partial.is_symlink() or (self.partial.exists() and not self.partial.is_dir()):
            raise ConvertError(f"{self.partial} is a link or a file; move it")
        notes = {"request", *names}
        known = {"lock", "model", "journal"}
        known |= {f"model/{name}{suffix}" for name in names for suffix in ("", WRITING)}
        known |= {f"model/{parent}" for name in names for parent in Path(name).parents}
        known |= {f"journal/{note}.json{suffix}" for note in notes for suffix in ("", WRITING)}
        for path in self.partial.rglob("*"):
            if str(path.relative_to(self.partial)) not in known or path.is_symlink():
                raise ConvertError(f"{path} is in the way, and no part of a half-finished conversion; move it")

    def _check_request(self, request: Mapping) -> None:
        """Note a request, or compare it with the one that is noted."""
        noted = self.journal / "request.json"
        if not noted.is_file():
            self._note(noted, request)
        before = _read(noted)
        for key, value in request.items():
            if before.get(key) != value:
                changed = key in ("source", MODIFIED)
                what = "IN has changed since" if changed else f"{key} {before.get(key)!r}, now {value!r}"
                again = f"finish that one, or remove {self.partial}"
                raise ConvertError(f"{self.partial} was begun by another command ({what}); {again}")

    def finished(self, shard: str, specs: Mapping[str, Spec]) -> Digest | None:
        """The digest of a shard that an earlier run has finished; None unless it has its header and this digest."""
        note = self.journal / f"{shard}.json"
        if not note.is_file() or not Layout(specs).fits(self.model / shard):
            return None
        with (self.model / shard).open("rb", buffering=0) as file:
            digest = digest_of(file)
        return digest if _read(note) == digest._asdict() else None

    def writing(self, name: str) -> Path:
        """Where a file is written until it is finished."""
        return self.model / f"{name}{WRITING}"

    def finish_shard(self, shard: str, digest: Digest) -> None:
        """Give a written, durable shard its name, and note its digest."""
        self.writing(shard).rename(self.model / shard)
        sync(self.model)
        self._note(self.journal / f"{shard}.json", digest._asdict())

    def add(self, name: str, content: Path | str) -> Digest:
        """A small file: a copy, or a text."""
        path = self.model / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content.encode())  # whatever the locale
        with path.open("rb", buffering=0) as file:
            os.fsync(file.fileno())
            return digest_of(file)

    def publish(self) -> None:
        """OUT.partial/model becomes OUT."""
        sync(self.model)
        os.rename(self.model, self.out)  # onto an empty folder, if there is one
        sync(self.out.parent)
        self.clean()

    def clean(self) -> None:
        """Remove what is left of OUT.partial."""
        shutil.rmtree(self.partial)

    def _note(self, path: Path, content: Mapping) -> None:
        """Write a JSON file, whole or not at all."""
        new = path.with_name(f"{path.name}{WRITING}")
        with new.open("w") as file:
            file.write(json.dumps(content, indent=1))
            file.flush()
            os.fsync(file.fileno())
        new.rename(path)
        sync(path.parent)


def _read(path: Path) -> dict:
    """A JSON file that `Output` has written."""
    try:
        return read_json(path)
    except BadDocument as error:
        raise ConvertError(f"{error}; remove {path}, or begin again in another OUT") from error


def check_room(folder: Path, needed: int) -> None:
    """Raise ConvertError if a disk has less than `needed` bytes left."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise ConvertError(f"the disk of {folder} is too full: {needed:,} bytes are needed, {free:,} are free")


def full_disk(error: OSError, out: Path) -> ConvertError | None:
    """The error of a disk that has filled up meanwhile; None for another error."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    return ConvertError(f"the disk of {out} is full; make room, and run the same command again: it goes on from there")


def sync(folder: Path) -> None:
    """Make a folder's names durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
