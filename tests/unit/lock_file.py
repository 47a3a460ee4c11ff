"""docker/locks as data: what each lock installs on which machine."""

import re
from functools import cache
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launch import ROOT

LOCKS = ROOT / "docker" / "locks"
MACHINES = ("x86_64", "aarch64")
ENTRY = re.compile(r"(?m)^([A-Za-z0-9][^\\\n]*?)\s*\\?\n((?:[ \t]+--hash=sha256:[0-9a-f]{64}\s*\\?\n)*)")


HASH = re.compile(r"--hash=\S+")


class Entry(NamedTuple):
    """A package of a lock."""

    requirement: Requirement
    hashes: tuple[str, ...]

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        (one,) = self.requirement.specifier
        assert one.operator == "==", self
        return one.version

    def applies(self, machine: str, python: str) -> bool:
        """Whether it is installed on Linux on such a processor."""
        system = {"platform_machine": machine, "python_version": python, "python_full_version": f"{python}.9"}
        return self.requirement.marker is None or self.requirement.marker.evaluate(system)


@cache
def entries(name: str) -> tuple[Entry, ...]:
    """All of them; each has a hash."""
    found = [Entry(Requirement(said), tuple(HASH.findall(hashes))) for said, hashes in ENTRY.findall(text(name))]
    assert all(entry.hashes for entry in found), name
    return tuple(found)


def text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def setting(name: str, key: str) -> str:
    """Of the comments of a .in file that are settings."""
    return next(iter(re.findall(rf"(?m)^# {key}: (.+)$", (LOCKS / f"{name}.in").read_text())), "")


def installed(name: str, machine: str) -> dict[str, str]:
    """The versions that a lock installs on Linux; a package once."""
    found = [one for one in entries(name) if one.applies(machine, setting(name, "python"))]
    versions = {one.name: one.version for one in found}
    assert len(versions) == len(found), f"{name}: a package has two versions on {machine}"
    return versions


def of_stack(stack: str) -> list[str]:
    """The locks of a stack's image, without what is built from source distributions: torch's comes first."""
    torch, image = (f"{stack}{end}" for end in (".torch", "-image"))
    return [name for name in (torch, image if (LOCKS / f"{image}.in").exists() else stack) if has(name)]


def has(name: str) -> bool:
    return (LOCKS / f"{name}.txt").exists()
