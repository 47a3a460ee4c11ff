"""Images as files, for machines without a registry: NAME.tar.zst (or .gz), its sha256, and the manifest beside it."""

import gzip
import hashlib
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from launch.errors import LaunchError
from launch.images import engine
from launch.images.tags import REPOSITORY, WORKING, for_processor
from launch.images.targets import targets
from launch.images.verify import Verified, verify

CHUNK = 1 << 20
SUM = ".sha256"

Tell = Callable[[str, int, int], None]  # what is done, bytes so far, bytes in all


def save(name: str, folder: Path, tell: Tell) -> tuple[Path, Verified]:
    """Write an image with its tags into `folder`; the archive, and what was found in the image.

    Args:
        name: an image, or a target, which stands for the image `ascend-quant:TARGET`.

    Raises:
        LaunchError: there is no such image, it has no manifest, or it cannot be written.
    """
    image = f"{REPOSITORY}:{name}" if name in targets() else name
    known = engine.image(image)
    tell(f"looking into {image}", 0, known.bytes)
    verified = verify(image)
    tell(f"looking into {image}", known.bytes, known.bytes)
    names = [one for one in known.names if not one.rpartition(":")[2].startswith(WORKING.format(target=""))]
    folder.mkdir(parents=True, exist_ok=True)
    long = for_processor(verified.tags[0], verified.manifest.architecture)
    stem = long if REPOSITORY in image else re.sub(r"[^\w.-]+", "-", image)
    archive = folder / f"{stem}.tar.{'zst' if shutil.which('zstd') else 'gz'}"
    part = archive.with_name(f"{archive.name}.part")
    try:
        _write(names or [image], part, lambda done: tell(f"saving {image}", done, known.bytes))
        part.replace(archive)
    finally:
        part.unlink(missing_ok=True)
    digest = sha256(archive, lambda done, total: tell("counting its sha256", done, total))
    archive.with_name(archive.name + SUM).write_text(f"{digest}  {archive.name}\n")
    (folder / f"{stem}.manifest.json").write_text(verified.manifest.as_json())
    return archive, verified


def _write(names: list[str], file: Path, tell: Callable[[int], None]) -> None:
    with packed(file) as out:
        child = subprocess.Popen([engine.client(), "save", *names], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with child:
            done = 0
            while chunk := child.stdout.read(CHUNK):
                out.write(chunk)
                tell(done := done + len(chunk))
            errors = child.stderr.read().decode(errors="replace")
        if child.returncode:
            raise LaunchError(f"docker save: {engine.why(errors)}")


@contextmanager
def packed(file: Path) -> Iterator[BinaryIO]:
    """A stream that is compressed into `file`: by zstd on all cores where it is installed, else by Python's gzip.

    Raises:
        LaunchError: it cannot be written there.
    """
    try:
        if shutil.which("zstd"):
            yield from _zstd(file)
        else:
            with gzip.open(file, "wb", compresslevel=6) as out:
                yield out
    except OSError as error:
        raise LaunchError(f"{file} cannot be written: {error.strerror or error}") from error


def _zstd(file: Path) -> Iterator[BinaryIO]:
    command = ["zstd", "-q", "-T0", "-c"]
    with (
        file.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=out, stderr=subprocess.PIPE) as child,
    ):
        try:
            with child.stdin:
                yield child.stdin
        except BrokenPipeError:
            pass  # it has ended: its exit code and its message say why
        errors = child.stderr.read().decode(errors="replace").strip()
    if child.returncode:
        raise LaunchError(f"{file} cannot be written: {errors}")


def sha256(file: Path, tell: Callable[[int, int], None]) -> str:
    """A file's SHA-256, in hexadecimal digits."""
    digest, done, total = hashlib.sha256(), 0, file.stat().st_size
    with file.open("rb") as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
            tell(done := done + len(chunk), total)
    return digest.hexdigest()


def check(archive: Path, tell: Tell) -> None:
    """Compare an archive with the sum beside it.

    Raises:
        LaunchError: it is not there, has no sum, or is damaged.
    """
    sums = archive.with_name(archive.name + SUM)
    for file in (archive, sums):
        if not file.is_file():
            raise LaunchError(f"{file} is not there: ./run.sh images save writes an archive and {SUM} beside it")
    wanted = sums.read_text().split()[0]
    found = sha256(archive, lambda done, total: tell("checking its sha256", done, total))
    if found != wanted:
        raise LaunchError(f"{archive} is damaged: its sha256 is {found}, and {sums.name} has {wanted}: copy it again")
