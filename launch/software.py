"""Which software is installed, asked of its metadata and of our own files: nothing is imported."""

import hashlib
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from launch.root import SOURCES


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the packages; one that is missing is left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def sources(folder: Path = SOURCES) -> str:
    """Twelve hex digits of a SHA-256 over the names and bytes of the Python files of ascend_quant and launch."""
    whole = hashlib.sha256()
    for file in sorted(file for package in ("ascend_quant", "launch") for file in (folder / package).rglob("*.py")):
        whole.update(f"{file.relative_to(folder)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
    return whole.hexdigest()[:12]
