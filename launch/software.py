"""Which software is installed, asked of its metadata: nothing is imported."""

import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the packages; one that is missing is left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
