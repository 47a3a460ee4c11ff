"""Bringing an archive into Docker engines: this machine's, or those of all hosts of an inventory at the same time."""

import json
import shlex
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launch.cluster.reasons import SSH_FAILED, reason
from launch.cluster.transport import command
from launch.errors import LaunchError
from launch.images import engine
from launch.images.archive import CHUNK
from launch.inventory import Inventory
from launch.network import is_here

HERE = "this machine"
LOADED = ("Loaded image: ", "Loaded image ID: ")
INSPECT_SECONDS = 60

Tell = Callable[[str, int, int], None]  # host, bytes so far, bytes in all


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
            place.run(line), capture_output=True, text=True, errors="replace", timeout=INSPECT_SECONDS
        )
    except subprocess.TimeoutExpired:
        return Loaded(place.name, name, problem=f"its Docker did not answer within {INSPECT_SECONDS} s")
    if asked.returncode:
        return Loaded(place.name, name, problem=why(place.name, asked.returncode, asked.stderr))
    return Loaded(place.name, name, engine.parse(json.loads(asked.stdout)[0]))


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
