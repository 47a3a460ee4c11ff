"""What a lock asks for on a machine: the packages whose conditions hold there, with their hashes."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from packaging.markers import Marker

from launch.doctor.gather.software import plain
from launch.errors import LaunchError
from launch.images.lock.text import Entry, parse


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
