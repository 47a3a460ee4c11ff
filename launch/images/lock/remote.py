"""What registries, git servers and archives say now: the digest of an image's tag, a branch's commit, a file's hash.

Archives are fetched and unpacked by the very step that image builds use.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launch.errors import LaunchError
from launch.images.lock.packages import run
from launch.root import ROOT
from launch.stacks import File, Pins

DIGEST = re.compile("sha256:[0-9a-f]{64}")
STEP = ROOT / "docker" / "steps" / "archive.py"


@dataclass(frozen=True)
class Question:
    """A pin of stacks.yaml that somebody else knows.

    Attributes:
        whom: who is asked, for people.
        place: its keys, below the stack.
        now: what it says.
        ask: what it should say; raises LaunchError with the reason where nobody answers.
    """

    whom: str
    place: tuple[str, ...]
    now: str
    ask: Callable[[], str]


def questions(pins: Pins) -> Iterator[Question]:
    """Every base, archive, and source whose commit was read from a tag or branch; one that was chosen stays."""
    for chip, image in pins.bases.items():
        tag = image.partition("@")[0]
        yield Question(f"registry: {tag}", ("bases", chip), image, partial(pinned, tag))
    for name, source in pins.sources.items():
        where = ("sources", name)
        if source.ref:
            ask = partial(commit, source.repository, source.ref)
            yield Question(f"git: {source.repository} {source.ref}", (*where, "commit"), source.commit, ask)
        for place, file in source.files.items():
            ask = partial(same, file)
            yield Question(f"archive: {file.address}", (*where, "files", place, "sha256"), file.sha256, ask)


def pinned(image: str) -> str:
    """An image with its digest, which stands for all its platforms.

    Raises:
        LaunchError: the registry was not reached, or has no such image.
    """
    said = run("docker", "buildx", "imagetools", "inspect", image, "--format", "{{json .Manifest}}")
    digest = json.loads(said).get("digest", "")
    if not DIGEST.fullmatch(digest):
        raise LaunchError(f"docker buildx imagetools inspect {image} names no digest: {said.strip()[:200]}")
    return f"{image}@{digest}"


def commit(repository: str, ref: str) -> str:
    """The commit that a tag or branch stands for; of an annotated tag, the one that it points at.

    Raises:
        LaunchError: the server was not reached, or has no such tag or branch.
    """
    said = run("git", "ls-remote", repository, ref, f"{ref}^{{}}")
    found = {name: commit for commit, name in (line.split("\t") for line in said.splitlines())}
    if ref not in found:
        raise LaunchError(f"{repository} has no {ref}")
    return found.get(f"{ref}^{{}}", found[ref])


def same(file: File) -> str:
    """The hash of an archive, which is that of its pin: an address whose file changed is an error, not a new pin.

    Raises:
        LaunchError: it was not reached, is another file, or cannot be unpacked.
    """
    with tempfile.TemporaryDirectory() as folder:
        fetch(file, Path(folder))
    return file.sha256


def fetch(file: File, folder: Path) -> None:
    """Unpack an archive into a folder.

    Raises:
        LaunchError: it was not reached, is another file than the pinned one, or no archive.
    """
    command = [sys.executable, str(STEP), file.address, file.sha256, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise LaunchError(done.stderr.strip())
