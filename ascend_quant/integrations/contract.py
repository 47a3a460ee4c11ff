"""The names of another package that are used here, as data: their modules, and the arguments of their calls.

The tables are checked in two ways: against the modules that this process imports, and against the sources of a release
that is not installed (tools/contract), which also covers attributes that are set in constructors.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from importlib import import_module
from inspect import Parameter, signature
from typing import Any


@dataclass(frozen=True)
class Use:
    """Declares the use of one name of another package.

    Attributes:
        names: possible locations: "module", "module:name" or "module:Class.attribute". The first that exists is used.
        arguments: names of the arguments with which it is called, or that its replacement reads.
        of_objects: whether only instances have it, so that the class does not show it.
    """

    names: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    of_objects: bool = False

    def __str__(self) -> str:
        called = f"({', '.join(self.arguments)})" if self.arguments else ""
        return " or ".join(self.names) + called


def use(*names: str, arguments: Iterable[str] = (), of_objects: bool = False) -> Use:
    """Create a row of a table of used names."""
    return Use(names, tuple(arguments), of_objects)


def missing(rows: Iterable[Use]) -> list[str]:
    """Return a description of each row that this process lacks; attributes of instances are not checked."""
    return [problem for row in rows if not row.of_objects and (problem := problem_of(row, _found, takes))]


def problem_of(row: Use, find: Callable[[str], Any | None], takes: Callable[[Any, str], bool]) -> str | None:
    """Return a description of what is missing for a row; None if nothing is.

    Args:
        find: looks a name up; returns None if it does not exist.
        takes: returns whether an object can be called with an argument of this name.
    """
    found = next((one for name in row.names if (one := find(name)) is not None), None)
    if found is None:
        return f"{row} is missing"
    lacking = [argument for argument in row.arguments if not takes(found, argument)]
    return f"{row} does not accept {', '.join(lacking)}" if lacking else None


def _found(name: str) -> Any | None:
    module, _, path = name.partition(":")
    try:
        found = import_module(module)
        for part in path.split(".") if path else ():
            found = getattr(found, part)
    except (ImportError, AttributeError):
        return None
    return found


def takes(function: Any, argument: str) -> bool:
    """Return whether a function or a class can be called with an argument of this name."""
    parameters = signature(function).parameters
    return argument in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
