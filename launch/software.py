"""Which software an environment has, asked of finders, metadata and our own files: nothing is imported."""

import hashlib
import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from pkgutil import get_importer

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


@dataclass(frozen=True)
class Import:
    """A module that a process of the run imports.

    Attributes:
        module: its dotted name; or, with `group`, the name of an entry point.
        who: what needs it: "needed by ..".
        fix: what to install, or to set instead.
        group: the entry points among which `module` is a name.
        elsewhere: another name that will do: the same module in another package.
    """

    module: str
    who: str
    fix: str
    group: str | None = None
    elsewhere: str | None = None

    @property
    def what(self) -> str:
        """What is to be found, and for whom."""
        name = f"the entry point {self.module} of {self.group}" if self.group else f"the Python module {self.module}"
        return f"{name} is not installed here; needed by {self.who}"


def missing(wanted: Iterable[Import], first: Sequence[str] = ()) -> list[Import]:
    """Those that are not in this environment; `first` are folders before sys.path, as in PYTHONPATH."""
    return [one for one in wanted if not is_there(one, first)]


def is_there(one: Import, first: Sequence[str] = ()) -> bool:
    """Whether this environment has it."""
    if one.group is not None:
        return bool(importlib.metadata.entry_points(group=one.group, name=one.module))
    return any(has_module(name, first) for name in (one.module, one.elsewhere) if name)


def has_module(name: str, first: Sequence[str] = ()) -> bool:
    """Whether a module can be found, without importing it or what it is in.

    `importlib.util.find_spec("megatron.core.x")` would import `megatron.core`, and torch with it.
    """
    top, *parts = name.split(".")
    folders = _in_folders(top, first)
    if folders is None:
        folders = _installed(top)
    for part in parts:
        folders = _in_folders(part, folders or ())
    return folders is not None


def _installed(name: str) -> list[str] | None:
    """Where the parts of a package lie, none if it is a module; or None. By the finders of `import`: editable installs
    have one of their own."""
    specs = (finder.find_spec(name, None) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    spec = next((spec for spec in specs if spec is not None), None)
    return None if spec is None else list(spec.submodule_search_locations or ())


def _in_folders(name: str, folders: Iterable[str]) -> list[str] | None:
    """The same, in these folders. A package without an __init__ may lie in several of them."""
    spread: list[str] = []
    for folder in folders:
        finder = get_importer(folder)
        spec = finder and finder.find_spec(name)
        if spec and spec.loader:
            return list(spec.submodule_search_locations or ())
        if spec:
            spread += spec.submodule_search_locations or ()
    return spread or None


def python_path(variables: Mapping[str, str]) -> list[str]:
    """The folders in which Python looks first with these variables; the process that asks may have others."""
    return [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]
