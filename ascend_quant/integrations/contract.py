"""The names of another package that are used here, as data: their modules, and the arguments of their calls.

Read in two ways: here, live, from what this process imports; and from the sources of a release that is not installed
(launch/contract), which also sees what objects are given when they are made.
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
        names: where it may stand: "module", "module:name" or "module:Class.attribute". The first that is there counts.
        arguments: by name, that it is called with, or that its replacement reads.
        of_objects: whether objects alone have it, which their class does not show.
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
    """List the rows that this process does not find, in words; rows of objects are not looked at."""
    return [problem for row in rows if not row.of_objects and (problem := problem_of(row, _found, takes))]


def problem_of(row: Use, find: Callable[[str], Any | None], takes: Callable[[Any, str], bool]) -> str | None:
    """Say what of a row is missing; None if nothing is.

    Args:
        find: what a name stands for; None where it is not there.
        takes: whether what was found can be called with an argument of that name.
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
    """Tell whether a function or a class can be called with an argument of that name."""
    parameters = signature(function).parameters
    return argument in parameters or any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
