"""Looking into an image: its manifest, and what in it is not as pinned."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.images import engine
from launch.images.compare import Difference, differences
from launch.images.manifest import Manifest
from launch.images.tags import tags
from launch.images.targets import Target, target_of


@dataclass(frozen=True)
class Verified:
    """An image that was looked into."""

    image: str
    target: Target
    manifest: Manifest
    differences: list[Difference]

    @property
    def tags(self) -> list[str]:
        """Its tags, from the manifest."""
        return tags(self.manifest, self.target)

    def as_json(self) -> str:
        """For programs."""
        tree = {
            "image": self.image,
            "target": self.target.name,
            "differences": [asdict(one) for one in self.differences],
            "tags": [] if self.differences else self.tags,
        }
        return json.dumps(tree, indent=1)

    def lines(self) -> list[str]:
        """For people."""
        told = [one.line() for one in self.differences]
        count = len(self.manifest.packages)
        end = f"{len(told)} differences" if told else f"{count} packages, labels and base as pinned"
        return [*told, f"{self.image}: {self.target.name}: {end}"]


def read_manifest(image: str) -> Manifest:
    """The manifest of an image, made in a container without a network.

    Raises:
        LaunchError: the image is not there, or cannot say what it is made of.
    """
    engine.image(image)  # `docker run` would try to pull one that is missing
    return Manifest.of(engine.docker("run", "--rm", "--network", "none", image, "manifest", "--json"), image)


def verify(image: str, file: Path | None = None) -> Verified:
    """Look into an image; its manifest is written to `file`.

    Raises:
        LaunchError: there is no such image, it has no manifest, or is of no stack that there is.
    """
    manifest = read_manifest(image)
    if file is not None:
        file.write_text(manifest.as_json())
    target = target_of(manifest.stack, manifest.chip)
    return Verified(image, target, manifest, differences(manifest, target, engine.image(image).labels))


def must_be_as_pinned(image: str) -> Verified:
    """`verify`, for what must not go on otherwise.

    Raises:
        LaunchError: a line for each difference.
    """
    verified = verify(image)
    if verified.differences:
        raise LaunchError("\n".join(verified.lines()))
    return verified
