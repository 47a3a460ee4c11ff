"""Which Python modules an environment has, asked of its finders and its metadata: none of them is imported."""

import importlib.metadata
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, PathFinder


@dataclass(frozen=True)
class Import:
    """A module that a process of the run imports.

    Attributes:
        module: its dotted name; or, with `group`, the name of an entry point.
        who: what needs it: "needed by ..".
        fix: what to install, or to set instead.
        group: the entry points among which `module` is a name.
    """

    module: str
    who: str
    fix: str
    group: str | None = None

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
    return has_module(one.module, first)


def has_module(name: str, first: Sequence[str] = ()) -> bool:
    """Whether a module can be found, without importing it or what it is in.

    `importlib.util.find_spec("megatron.core.x")` would import `megatron.core`, and torch with it.
    """
    path, whole = None, ""
    for part in name.split("."):
        whole = f"{whole}.{part}" if whole else part
        spec = _spec(whole, path, first)
        if spec is None:
            return False
        path = spec.submodule_search_locations
        if path is None and whole != name:  # a plain file has nothing below it
            return False
    return True


def _spec(name: str, path: Sequence[str] | None, first: Sequence[str]) -> ModuleSpec | None:
    """Of the finders that `import` asks; PathFinder alone would miss editable installs."""
    if path is None and first and (found := PathFinder.find_spec(name, list(first))):
        return found
    specs = (finder.find_spec(name, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
    return next((spec for spec in specs if spec is not None), None)


def python_path(variables: Mapping[str, str]) -> list[str]:
    """The folders in which Python looks first with these variables; the process that asks may have others."""
    return [folder for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]
