"""Which software is installed, asked of its metadata and of our own files: nothing is imported."""

import hashlib
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from launch.root import ROOT


def installed(packages: Iterable[str]) -> dict[str, str]:
    """Versions of Python and of the packages; one that is missing is left out."""
    found = {"python": platform.python_version()}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def own_packages() -> list[Path]:
    """The folders of launch, and of the ascend_quant that would be imported: in an image it is installed elsewhere."""
    found = find_spec("ascend_quant")
    return [ROOT / "launch", *(Path(folder) for folder in (found and found.submodule_search_locations) or [])]


def sources(packages: Sequence[Path]) -> str:
    """Twelve hex digits of a SHA-256 over the names and bytes of the Python files of these packages."""
    of_package = ((package, file) for package in packages for file in package.rglob("*.py"))
    files = {f"{package.name}/{file.relative_to(package)}": file for package, file in of_package}
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name}\0".encode() + hashlib.sha256(files[name].read_bytes()).digest())
    return whole.hexdigest()[:12]
