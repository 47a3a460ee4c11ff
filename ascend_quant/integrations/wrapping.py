"""Monkeypatching: everything that is replaced in other packages at run time is a row in a hooks.py.

A row declares what is replaced, by what, why, in which versions, and how to switch it off. A function is replaced once,
however often its row is installed; its replacement is called with the same arguments.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

MARK = "ascend_quant_hook"  # an attribute of replacements

_told: set[tuple[str, ...]] = set()  # optional rows without targets that have been logged


@dataclass(frozen=True)
class Hook:
    """A monkeypatch: functions of another package that are replaced in the same way.

    Attributes:
        targets: "module:function" or "module:Class.method".
        make: returns the replacement of a function.
        why: why it is needed, and why nothing else works.
        versions: the versions that it covers.
        off: how a user can switch it off.
        optional: some of the targets or their modules do not exist in every version.
        loaded: only modules that are already imported are patched.
        everywhere: also replace the function in modules of the same package that have imported it by name.
        fits: returns whether a function is to be replaced.
    """

    targets: tuple[str, ...]
    make: Callable[[Callable], Callable]
    why: str
    versions: str
    off: str
    optional: bool = False
    loaded: bool = False
    everywhere: bool = False
    fits: Callable[[Callable], bool] = callable


@dataclass(frozen=True)
class ManualPatch:
    """Another replacement: of an attribute of single objects, an entry of a table, or a variable.

    Attributes:
        what: description of what is replaced.
        by: "module:function" of this package that replaces it.
        why, versions, off: as in `Hook`.
    """

    what: str
    by: str
    why: str
    versions: str
    off: str


def install(hooks: Iterable[Hook]) -> None:
    """Apply all of these rows or none; idempotent. An optional row that finds no target is logged.

    Raises:
        ImportError, AttributeError: a target that is not optional does not exist.
    """
    places = [(hook, [_place(hook, target) for target in hook.targets]) for hook in hooks]
    for hook, found in places:
        there = [place for place in found if place is not None]
        if not there and not hook.loaded and hook.targets not in _told:
            _told.add(hook.targets)
            logger.info("not patched, as this version has no %s: %s", " or ".join(hook.targets), hook.why)
        for owner, name, target in there:
            _replace(hook, owner, name, target)


def _place(hook: Hook, target: str) -> tuple[Any, str, str] | None:
    """Return a target's module or class, its name there, and the target; None if it does not exist."""
    module_name, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner = _module(hook, module_name)
    for part in owners:
        owner = getattr(owner, part, None) if hook.optional else getattr(owner, part)
    if owner is None:  # None has attributes too, such as __init__
        return None
    original = getattr(owner, name, None) if hook.optional else getattr(owner, name)
    return None if original is None else (owner, name, target)


def _replace(hook: Hook, owner: Any, name: str, target: str) -> None:
    original = getattr(owner, name)
    if hasattr(original, MARK) or not hook.fits(original):
        return
    replacement = wraps(original)(hook.make(original))
    setattr(replacement, MARK, target)
    setattr(owner, name, replacement)
    if hook.everywhere:
        package = target.partition(":")[0].partition(".")[0]
        for other_name, other in list(sys.modules.items()):
            if other_name.partition(".")[0] == package and getattr(other, name, None) is original:
                setattr(other, name, replacement)


def _module(hook: Hook, name: str) -> object | None:
    if hook.loaded:
        return sys.modules.get(name)
    try:
        return import_module(name)
    except ImportError:
        if not hook.optional:
            raise
        return None
