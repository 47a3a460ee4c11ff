"""What a target has that is not pinned: bases without a digest, packages of docker/stacks.yaml that no lock has."""

from collections.abc import Iterable
from pathlib import Path

from launch.doctor.checks.versions import public
from launch.doctor.gather.software import plain
from launch.images.locked import locked, machine
from launch.images.targets import Target
from launch.stacks import Pins

MACHINES = ("x86_64", "aarch64")


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
        for package in unlocked(target.pins, [*target.locks, *target.sdists], one):
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
