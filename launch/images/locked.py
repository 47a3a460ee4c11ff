"""Lock files: their entries, those for one machine, and what a target has that no lock pins.

A lock has one entry a package, with the hashes of its files, and a marker where one platform alone has it. What is not
pinned keeps a target from being built: bases without a digest, packages of docker/stacks.yaml that no lock has.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.markers import Marker

from launch.doctor.checks.versions import plain, public
from launch.errors import LaunchError
from launch.images.targets import Target
from launch.stacks import Pins

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
HASH = re.compile(r"^\s+--hash=(?P<hash>sha256:[0-9a-f]{64})\s*\\?$")
MACHINES = ("x86_64", "aarch64")


@dataclass(frozen=True)
class Entry:
    """A package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    marker: str | None = None

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n".join([f"{self.name}=={self.version}{marker}", *(f"    --hash={one}" for one in self.hashes)])


def parse(text: str) -> list[Entry]:
    """The entries of a lock; a package has one for each of its versions.

    Raises:
        ValueError: a line that is neither an entry, nor a hash, nor a comment; an entry without a hash.
    """
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if entry := ENTRY.match(line):
            entries.append(Entry(entry["name"], entry["version"], (), entry["marker"]))
        elif (found := HASH.match(line)) and entries:
            entries[-1] = replace(entries[-1], hashes=(*entries[-1].hashes, found["hash"]))
        else:
            raise ValueError(f"line {number} is not of a lock: {line!r}")
    if bare := [entry.name for entry in entries if not entry.hashes]:
        raise ValueError(f"no hash for {', '.join(bare)}")
    return entries


def merged(platforms: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """One list for all platforms (x86_64, aarch64): what some lack gets a marker with the machines that have it."""
    machines: dict[Entry, list[str]] = {}
    for machine, entries in platforms.items():
        for entry in entries:
            machines.setdefault(entry, []).append(machine)
    together = [
        entry if len(having) == len(platforms) else replace(entry, marker=_marker(having))
        for entry, having in machines.items()
    ]
    return sorted(together, key=lambda entry: (entry.name, entry.version))


def _marker(machines: Iterable[str]) -> str:
    return " or ".join(f"platform_machine == '{machine}'" for machine in machines)


def locked(files: Iterable[Path], machine: Mapping[str, str]) -> list[Entry]:
    """The packages for a machine, without their conditions.

    Args:
        machine: what conditions ask about, by PEP 508's names: platform_machine, python_version, ..

    Raises:
        LaunchError: a file is no lock.
    """
    return [
        replace(entry, name=plain(entry.name), marker=None)
        for file in files
        for entry in entries(file)
        if entry.marker is None or Marker(entry.marker).evaluate(dict(machine))
    ]


def entries(file: Path) -> list[Entry]:
    """All entries of a lock.

    Raises:
        LaunchError: it is no lock.
    """
    try:
        return parse(file.read_text())
    except ValueError as error:
        raise LaunchError(f"{file}: {error}") from error


def machine(python: str, architecture: str) -> dict[str, str]:
    """What conditions ask about a Linux machine.

    Args:
        python: its version, all of it or major and minor.
    """
    return {
        "platform_machine": architecture,
        "python_full_version": python if python.count(".") > 1 else f"{python}.0",
        "python_version": ".".join(python.split(".")[:2]),
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "sys_platform": "linux",
        "os_name": "posix",
    }


def loose(target: Target, machines: Iterable[str] = MACHINES) -> list[str]:
    """A phrase for each thing that keeps it from being built; none where all is pinned.

    Raises:
        LaunchError: a file that should be a lock is none.
    """
    found = [] if "@" in target.base else [f"{target.base} has no digest"]
    if not target.locks:
        return [*found, "its packages have no lock"]
    lacking: dict[str, list[str]] = {}
    for one in machines:
        for package in unlocked(target.pins, target.lists, one):
            lacking.setdefault(package, []).append(one)
    return [*found, *(f"{package} is in no lock for {' and '.join(of)}" for package, of in lacking.items())]


def unlocked(pins: Pins, locks: Iterable[Path], architecture: str) -> list[str]:
    """The packages of stacks.yaml that a machine would install from no lock, with their versions."""
    have = {one.name: public(one.version) for one in locked(locks, machine(pins.python, architecture))}
    return [
        f"{name} {version}"
        for name, version in pins.packages.items()
        if name not in pins.sources and have.get(plain(name)) != version
    ]
