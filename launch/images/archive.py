"""Images as files, for machines without a registry: an archive is written, and brought into Docker engines.

NAME.tar.zst (or .gz) has its sha256 and the manifest beside it. The engines are this machine's, or those of all hosts
of an inventory at the same time.
"""

import gzip
import hashlib
import re
import shlex
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from launch.cluster.transport import SSH_FAILED, command, reason
from launch.errors import LaunchError
from launch.images import engine
from launch.images.targets import targets
from launch.images.verify import REPOSITORY, WORKING, Verified, for_processor, verify
from launch.inventory import Inventory
from launch.network import is_here

CHUNK = 1 << 20
SUM = ".sha256"
SHA256 = re.compile(rb"\\?([0-9a-fA-F]{64})(?:\s|$)")
Tell = Callable[[str, int, int], None]  # what is done, or the host; bytes so far, bytes in all
HERE = "this machine"
LOADED = ("Loaded image: ", "Loaded image ID: ")


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
    wanted = written_sum(sums)
    found = sha256(archive, lambda done, total: tell("checking its sha256", done, total))
    if found != wanted:
        raise LaunchError(f"{archive} is damaged: its sha256 is {found}, and {sums.name} has {wanted}: copy it again")


def written_sum(file: Path) -> str:
    """The SHA-256 that a file as of `sha256sum` begins with, in small letters.

    Raises:
        LaunchError: it has none, or cannot be read.
    """
    try:
        with file.open("rb") as opened:
            found = SHA256.match(opened.read(CHUNK))
    except OSError as error:
        raise LaunchError(f"{file} cannot be read: {error.strerror}") from error
    if found is None:
        raise LaunchError(f"{file} does not begin with a sha256, of 64 digits: copy it again")
    return found[1].decode().lower()


@dataclass(frozen=True)
class Place:
    """An engine: `run` makes the arguments that run a shell line beside it."""

    name: str
    run: Callable[[str], list[str]]


@dataclass(frozen=True)
class Loaded:
    """What became of an archive on a host: the image and its name there, or the reason why there is none."""

    place: str
    name: str | None = None
    image: engine.Image | None = None
    problem: str | None = None


def places(inventory: Inventory | None) -> list[Place]:
    """The hosts of an inventory, or this machine alone."""
    if inventory is None:
        engine.client()
        return [Place(HERE, lambda line: ["bash", "-c", line])]
    return [_place(inventory, index) for index in range(len(inventory.hosts))]


def _place(inventory: Inventory, index: int) -> Place:
    host = inventory.hosts[index]
    local = is_here(host.address)
    return Place(host.address, lambda line: command(inventory, host, line, local))


def load(archive: Path, where: Sequence[Place], tell: Tell) -> list[Loaded]:
    """Send the archive to every place at the same time, then hold the images that they have beside each other.

    Raises:
        LaunchError: a line for each place that has not the image of the others.
    """
    with ThreadPoolExecutor(len(where)) as threads:
        loaded = compared(list(threads.map(lambda place: load_at(place, archive, tell), where)))
    if failed := [one for one in loaded if one.problem]:
        raise LaunchError("\n".join(f"{one.place}: {one.problem}" for one in failed))
    return loaded


def load_at(place: Place, archive: Path, tell: Tell) -> Loaded:
    """Send the archive to one place, and ask which image it has now."""
    code, out, errors = send(place, archive, tell)
    if code:
        return Loaded(place.name, problem=why(place.name, code, errors))
    name = next(
        (line.removeprefix(start) for line in out.splitlines() for start in LOADED if line.startswith(start)), None
    )
    if name is None:
        return Loaded(place.name, problem=f"docker load named no image: {out.strip()[:200]!r}")
    line = shlex.join(["docker", "image", "inspect", name])
    try:
        asked = subprocess.run(
            place.run(line), capture_output=True, text=True, errors="replace", timeout=engine.ANSWER_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Loaded(place.name, name, problem=f"its Docker did not answer within {engine.ANSWER_SECONDS} s")
    if asked.returncode:
        return Loaded(place.name, name, problem=why(place.name, asked.returncode, asked.stderr))
    try:
        return Loaded(place.name, name, engine.inspected(asked.stdout))
    except LaunchError as error:
        return Loaded(place.name, name, problem=str(error))


def send(place: Place, archive: Path, tell: Tell) -> tuple[int, str, str]:
    """Stream the archive into `docker load`, which unpacks zstd and gzip itself: exit code, output and errors."""
    total, done = archive.stat().st_size, 0
    child = subprocess.Popen(
        place.run("docker load --quiet"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    try:
        with archive.open("rb") as content, child.stdin as out:
            while chunk := content.read(CHUNK):
                out.write(chunk)
                tell(place.name, done := done + len(chunk), total)
    except BrokenPipeError:
        pass  # it ended early: its exit code and its message say why
    child.stdin = None  # closed above; communicate() would flush it
    out, errors = (text.decode(errors="replace") for text in child.communicate())
    return child.returncode, out, errors


def why(host: str, code: int, errors: str) -> str:
    """Why a host has no image now, in one line."""
    return reason(host, code, errors) if code == SSH_FAILED else engine.why(errors)


def compared(loaded: list[Loaded]) -> list[Loaded]:
    """The same, where an image that is not the one of most hosts is a problem of its host.

    Two engines may count an image's id differently and hold the same: then its layers are the same.
    """
    held = Counter(one.image.layers for one in loaded if one.image)
    if len(held) < 2:
        return loaded
    usual = held.most_common(1)[0][0]
    return [
        one
        if one.image is None or one.image.layers == usual
        else Loaded(one.place, one.name, problem=f"{one.name} is another image there: {one.image.id}")
        for one in loaded
    ]
