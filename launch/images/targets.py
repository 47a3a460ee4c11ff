"""What can be built: a target is a stack, and where chips differ, a stack for one chip. Each has a base and locks."""

from dataclasses import dataclass
from pathlib import Path

from launch.errors import LaunchError
from launch.root import ROOT
from launch.stacks import Pins, all_pins

LOCKS = ROOT / "docker" / "locks"


@dataclass(frozen=True)
class Target:
    """One image.

    Attributes:
        chip: A2 or A3, or None where chips make no difference.
    """

    stack: str
    chip: str | None
    pins: Pins

    @property
    def name(self) -> str:
        """As in the tags."""
        return f"{self.stack}-{self.chip.lower()}" if self.chip else self.stack

    @property
    def bake(self) -> str:
        """As in docker/docker-bake.hcl, whose names have no dots."""
        return self.name.replace(".", "_")

    @property
    def base(self) -> str:
        """The image that it starts from: name:tag@digest."""
        return self.pins.bases[self.chip or "any"]

    @property
    def locks(self) -> list[Path]:
        """The files that list its packages, with their hashes: torch's, and all others; none where it is not locked."""
        torch, image, plain = (LOCKS / f"{self.stack}{end}.txt" for end in (".torch", "-image", ""))
        packages = image if image.is_file() else plain
        return [file for file in (torch, packages) if file.is_file()] if packages.is_file() else []

    @property
    def sdists(self) -> list[Path]:
        """The file that lists what is built from source distributions against those packages, where there is one."""
        file = LOCKS / f"{self.stack}.sdists.txt"
        return [file] if self.locks and file.is_file() else []

    @property
    def lists(self) -> list[Path]:
        """Both: every file that lists a package of it."""
        return [*self.locks, *self.sdists]


def targets() -> dict[str, Target]:
    """All of them, by name."""
    found = [Target(stack, chip, pins) for stack, pins in all_pins().items() for chip in pins.chips or [None]]
    return {target.name: target for target in found}


def target(name: str) -> Target:
    """One of them.

    Raises:
        LaunchError: there is none of this name.
    """
    known = targets()
    if name not in known:
        raise LaunchError(f"no target {name!r}; there are: {', '.join(known)}")
    return known[name]


def target_of(stack: str, chip: str | None) -> Target:
    """The target that an image says it is.

    Raises:
        LaunchError: there is none of this stack and chip.
    """
    for one in targets().values():
        if (one.stack, one.chip) == (stack, chip):
            return one
    raise LaunchError(
        f"stack {stack!r} with chip {chip!r} is none of docker/stacks.yaml; its targets: {', '.join(targets())}"
    )
