"""What registries and git servers say now: the digest of a tag of an image, the commit of a tag or branch."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from launch.errors import LaunchError
from launch.images.lock.packages import run
from launch.stacks import Pins

DIGEST = re.compile("sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Question:
    """A pin of stacks.yaml that somebody else knows.

    Attributes:
        place: its keys, below the stack.
        now: what it says.
        ask: what it should say; raises LaunchError with the reason where nobody answers.
    """

    place: tuple[str, ...]
    now: str
    ask: Callable[[], str]


def questions(pins: Pins) -> Iterator[Question]:
    """Every base, and every source whose commit was read from a tag or branch; one that was chosen stays."""
    for chip, image in pins.bases.items():
        yield Question(("bases", chip), image, partial(pinned, image.partition("@")[0]))
    for name, source in pins.sources.items():
        if source.ref:
            yield Question(("sources", name, "commit"), source.commit, partial(commit, source.repository, source.ref))


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
