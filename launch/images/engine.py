"""The Docker engine, asked by its own client; what it answers badly becomes one line that says what to do."""

import shutil
import subprocess
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError

from ascend_quant.documents import BadDocument, parse_json
from launch.errors import LaunchError

ANSWER_SECONDS = 60
NO_CLIENT = "Docker is not installed, or not on PATH"
MEANINGS = (  # what the client or the engine writes, and what to do
    (
        "permission denied while trying to connect",
        "this user may not use Docker: add it to the group docker, or be root",
    ),
    ("Cannot connect to the Docker daemon", "no Docker engine answers: start it, or set DOCKER_HOST"),
    ("no space left on device", "the disk is full: see `docker system df`, and `docker image prune`"),
    (
        "No such image",
        "there is no such image here: ./run.sh images build or load makes one, `docker images` lists them",
    ),
    ("docker: command not found", NO_CLIENT),
    ("docker: not found", NO_CLIENT),
)


@dataclass(frozen=True)
class Image:
    """What the engine knows of an image.

    Attributes:
        id: its own id; engines that keep images in containerd count another one than those that do not.
        layers: the digests of its layers' contents, alike on every engine.
        names: its tags, as repository:tag.
        bytes: unpacked.
    """

    id: str
    layers: tuple[str, ...]
    names: tuple[str, ...]
    labels: dict[str, str]
    bytes: int


def client() -> str:
    """The path of the docker client.

    Raises:
        LaunchError: it is not on PATH.
    """
    found = shutil.which("docker")
    if found is None:
        raise LaunchError("docker is not on PATH: images need a Docker engine and its client")
    return found


def docker(*arguments: str, seconds: float | None = ANSWER_SECONDS) -> str:
    """What `docker ARGUMENTS` prints.

    Args:
        seconds: how long it may take; None for what takes as long as a network does.

    Raises:
        LaunchError: it failed, and why; or it did not answer in time.
    """
    try:
        done = subprocess.run([client(), *arguments], capture_output=True, text=True, errors="replace", timeout=seconds)
    except subprocess.TimeoutExpired:
        words = " ".join(arguments[:2])
        raise LaunchError(f"docker {words} did not answer within {seconds:g} s: is its engine well?") from None
    if done.returncode:
        raise LaunchError(f"docker {' '.join(arguments[:2])}: {why(done.stderr)}")
    return done.stdout


def keeps_attestations() -> bool:
    """Whether the engine keeps images in containerd, where there is a place for an SBOM and the provenance.

    Raises:
        LaunchError: no engine answers.
    """
    return "io.containerd.snapshotter" in docker("info", "--format", "{{.DriverStatus}}")


def why(errors: str) -> str:
    """What the client said last, and what to do about it where that is known."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    said = lines[-1] if lines else "it gave no reason"
    for text, meaning in MEANINGS:
        if line := next((line for line in reversed(lines) if text in line), None):
            return f"{meaning} ({line})"
    return said


def image(name: str) -> Image:
    """What the engine knows of an image.

    Raises:
        LaunchError: it is not there.
    """
    return inspected(docker("image", "inspect", name))


def inspected(said: str) -> Image:
    """The image that `docker image inspect NAME` tells of.

    Raises:
        LaunchError: that is not what Docker answers.
    """
    try:
        (tree,) = parse_json(said, "its answer")
        return parse(tree)
    except (BadDocument, ValidationError, ValueError, TypeError) as error:
        raise LaunchError(f"docker image inspect answered {said.strip()[:80]!r}: is `docker` Docker?") from error


def parse(tree: dict[str, Any]) -> Image:
    """The part of `docker image inspect` that is used here.

    Raises:
        ValidationError: it is not in the tree, or of another type.
    """
    told = _Inspected.model_validate(tree)
    return Image(
        id=told.Id,
        layers=tuple(told.RootFS.Layers or ()),
        names=tuple(told.RepoTags or ()),
        labels=dict(told.Config.Labels or {}),
        bytes=told.Size,
    )


class _RootFS(BaseModel):
    Layers: list[str] | None = None


class _Config(BaseModel):
    Labels: dict[str, str] | None = None


class _Inspected(BaseModel):
    """The names are Docker's."""

    Id: str
    RootFS: _RootFS
    RepoTags: list[str] | None = None
    Config: _Config
    Size: int
