"""The software of an environment, from import finders, package metadata and our own files; nothing is imported."""

import hashlib
import importlib.metadata
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from importlib.metadata import Distribution, distributions
from importlib.util import find_spec
from pathlib import Path

from launch import ROOT

CANN_FOLDERS = ("usr/local/Ascend/cann", "usr/local/Ascend/ascend-toolkit/latest")
CANN_FILE = "*-linux/ascend_toolkit_install.info"
PRODUCTS = {"ascend910b": "A2", "ascend910_93": "A3"}


@dataclass(frozen=True)
class Package:
    """An installed package; `commit` is known if its installer or version records it."""

    version: str
    commit: str | None = None


def own_packages() -> list[Path]:
    """Return the folders of launch, and of the ascend_quant that would be imported, which is elsewhere in an image."""
    found = find_spec("ascend_quant")
    return [ROOT / "launch", *(Path(folder) for folder in (found and found.submodule_search_locations) or [])]


def sources(packages: Sequence[Path]) -> str:
    """Return the first 12 hex digits of a SHA-256 over names and contents of these packages' Python files."""
    of_package = ((package, file) for package in packages for file in package.rglob("*.py"))
    files = {f"{package.name}/{file.relative_to(package)}": file for package, file in of_package}
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(f"{name}\0".encode() + hashlib.sha256(files[name].read_bytes()).digest())
    return whole.hexdigest()[:12]


@dataclass(frozen=True)
class Import:
    """An import that a process of the run makes.

    Attributes:
        module: dotted name of the module; with `group`, name of an entry point.
        who: the part that needs it: "needed by ..".
        fix: what to install or to set instead.
        group: entry-point group of `module`.
        elsewhere: alternative name: the same module in another package.
    """

    module: str
    who: str
    fix: str
    group: str | None = None
    elsewhere: str | None = None

    @property
    def what(self) -> str:
        """Description of the missing import and of what needs it."""
        name = f"the entry point {self.module} of {self.group}" if self.group else f"the Python module {self.module}"
        return f"{name} is not installed here; needed by {self.who}"


def missing(wanted: Iterable[Import], first: Sequence[str] = ()) -> list[Import]:
    """Return the imports that this environment lacks; `first` are folders before sys.path, as in PYTHONPATH."""

    def is_there(one: Import) -> bool:
        if one.group is not None:
            return bool(importlib.metadata.entry_points(group=one.group, name=one.module))
        return any(has_module(name, first) for name in (one.module, one.elsewhere) if name)

    return [one for one in wanted if not is_there(one)]


def has_module(name: str, first: Sequence[str] = ()) -> bool:
    """Return whether a module can be found, without importing it or its parent packages.

    `importlib.util.find_spec("megatron.core.x")` would import `megatron.core`, and therefore torch; for a name without
    a dot it imports nothing.
    """
    top, *parts = name.split(".")
    spec = PathFinder.find_spec(top, list(first)) or find_spec(top)
    for part in parts:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return spec is not None


def python_path(variables: Mapping[str, str]) -> list[str]:
    """Return the folders that Python searches first with these variables, which may differ from this process's."""
    return [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]


def installed_packages() -> dict[str, Package]:
    """Return every installed package; of duplicates, the first on sys.path, which is the one imported."""
    found: dict[str, Package] = {}
    for distribution in distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(plain(name), Package(distribution.version, commit(distribution)))
    return found


def plain(name: str) -> str:
    """Normalize a package's name as the index does."""
    return re.sub(r"[-_.]+", "-", name).lower()


def commit(distribution: Distribution) -> str | None:
    """Return the commit from which a package was built, if its installer (PEP 610) or version (+gHASH) records it."""
    direct = distribution.read_text("direct_url.json")
    if direct and (said := json.loads(direct).get("vcs_info", {}).get("commit_id")):
        return said
    found = re.search(r"\+(?:.*\.)?g([0-9a-f]{7,40})", distribution.version)
    return found[1] if found else None


def cann_version(root: Path, environment: Mapping[str, str]) -> tuple[str | None, str]:
    """Return CANN's version and the file that has it; or None, and the places that were searched."""
    set_by = next((name for name in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME") if environment.get(name)), None)
    folders = [Path(environment[set_by])] if set_by else [root / folder for folder in CANN_FOLDERS]
    for folder in folders:
        for file in sorted(folder.glob(CANN_FILE)):
            found = re.search(r"(?m)^version=(\S+)", file.read_text(errors="replace"))
            if found:
                return found[1], str(file)
    return None, f"{' or '.join(map(str, folders))}{f' ({set_by})' if set_by else ''}"


def chip_of_build() -> str | None:
    """Return the chip for which the installed vllm-ascend was built, from _build_info.py: SoC or product."""
    for distribution in distributions(name="vllm-ascend"):
        file = Path(str(distribution.locate_file("vllm_ascend/_build_info.py")))
        if file.is_file():
            found = re.search(r"__(?:soc_version|device_type)__ *= *['\"](\w+)['\"]", file.read_text())
            return found[1] if found else None
    return None


def product(chip_name: str) -> str | None:
    """Return A2 or A3, from a SoC's name or from that word itself."""
    return next(
        (word for start, word in PRODUCTS.items() if chip_name.lower().startswith(start) or chip_name == word), None
    )
