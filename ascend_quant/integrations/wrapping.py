"""Monkeypatching: everything that is replaced in other packages at run time is a row in a hooks.py.

A row says what is replaced, by what, why, which versions it covers and how to switch it off. A function is replaced
once, however often its row is installed; what stands there instead is called with the same arguments.
"""

import logging
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import wraps
from importlib import import_module
from typing import Any

logger = logging.getLogger(__name__)

MARK = "ascend_quant_hook"  # an attribute of what has been put in place

_told: set[tuple[str, ...]] = set()  # of optional rows that found nothing


@dataclass(frozen=True)
class Hook:
    """Row that declares a monkeypatch: functions of another package that are replaced alike.

    Attributes:
        targets: "module:function" or "module:Class.method".
        make: of a function, what takes its place.
        why: the need, and that nothing else serves it.
        versions: that it covers.
        off: how a user does without.
        optional: some of the targets, or the modules they are in, are not in every version.
        loaded: modules that nothing has imported yet stay so, with what they hold.
        everywhere: modules of the same package that have imported the function by its name get the other one too.
        fits: of a function, whether it is one to replace.
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
class ByHand:
    """Row that declares a replacement by hand: on single objects that are ours to serve, in a table or among variables.

    Attributes:
        what: what is replaced, in words.
        by: "module:function" of this package that replaces it.
        why, versions, off: as in `Hook`.
    """

    what: str
    by: str
    why: str
    versions: str
    off: str


def install(hooks: Iterable[Hook]) -> None:
    """Put these rows in place, all or none; harmless when repeated. An optional row that finds nothing is logged.

    Raises:
        ImportError, AttributeError: a target that is not optional is not there.
    """
    places = [(hook, [_place(hook, target) for target in hook.targets]) for hook in hooks]
    for hook, found in places:
        there = [place for place in found if place is not None]
        if not there and not hook.loaded and hook.targets not in _told:
            _told.add(hook.targets)
            logger.info("nothing is replaced here, as this version has no %s: %s", " or ".join(hook.targets), hook.why)
        for owner, name, target in there:
            _replace(hook, owner, name, target)


def _place(hook: Hook, target: str) -> tuple[Any, str, str] | None:
    """Return a target's module or class, its name there, and the target; None where it is not there."""
    module_name, _, path = target.partition(":")
    *owners, name = path.split(".")
    owner = _module(hook, module_name)
    for part in owners:
        owner = getattr(owner, part, None) if hook.optional else getattr(owner, part)
    if owner is None:  # which has methods too, such as __init__
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
