"""Time stamps of named functions, from outside, in every process that imports them.

Each process appends lines of JSON to FOLDER/<pid>.jsonl: {"id", "parent", "name", "start", "end", "note"} for a call,
seconds of the host's own clock, which all its processes share; {"stamped": "module:name"} for a function that was
found, {"missing": ..} for one that was not. A stamp's parent is the call that it happened in, of the same task or
thread, or of the one that started it.
"""

import atexit
import functools
import importlib.abc
import importlib.util
import inspect
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Container, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

AT_ONCE = 5000  # lines that are kept before they are written
_inside: ContextVar[int | None] = ContextVar("inside", default=None)  # the stamp of the call that this is in


@dataclass(frozen=True)
class Target:
    """A function, or a method of a class, that is stamped.

    Attributes:
        name: in its module: `function`, or `Class.method`.
        outermost: also stamped outside of all other stamped calls; others are left alone there.
        note: what of a call is kept beside its times, of its result, its arguments and its keywords.
        follow: what is done with the first argument after a call, before the stamp ends.
        waits: the device is waited for, where the recorder is asked to.
        of: where it must be found: "" everywhere, else what `sync_stamps` says.
    """

    module: str
    name: str
    outermost: bool = False
    note: Callable[[Any, tuple, dict], Any] | None = None
    follow: Callable[["Recorder", Any], None] | None = None
    waits: bool = False
    of: str = ""

    @property
    def place(self) -> str:
        """For people, and for the report."""
        return f"{self.module}:{self.name}"


class Recorder:
    """Stamps a process's functions.

    Args:
        folder: where each process writes.
        wait: waits for the device, after targets that say so.
        now: seconds, of a clock that the host's processes share.
    """

    def __init__(
        self,
        folder: Path,
        targets: Sequence[Target],
        wait: Callable[[], None] = lambda: None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._folder, self._wait, self._now = folder, wait, now
        self._targets: dict[str, list[Target]] = {}
        for target in targets:
            self._targets.setdefault(target.module, []).append(target)
        self._numbers, self._lines, self._lock = itertools.count(), [], threading.Lock()

    def begin(self) -> None:
        """From now on: modules that are there, and those that will be imported."""
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in self._targets:
            if (module := sys.modules.get(name)) is not None:
                self.wrap(module)
        sys.meta_path.insert(0, Finder(self._targets, self.wrap))
        atexit.register(self.flush)

    def wrap(self, module: ModuleType) -> None:
        """Put stamped functions in the place of a module's targets."""
        for target in self._targets[module.__name__]:
            owner, _, leaf = target.name.rpartition(".")
            holder = getattr(module, owner, None) if owner else module
            function = vars(holder).get(leaf) if holder is not None else None
            if inspect.isfunction(function):
                setattr(holder, leaf, self.stamped(target, function))
                self._add({"stamped": target.place})
            else:
                self._add({"missing": target.place})
                self.flush()

    def stamped(self, target: Target, function: Callable) -> Callable:
        """The function, whose calls leave stamps; what decorators have set on it stays."""
        if inspect.iscoroutinefunction(inspect.unwrap(function)):  # below torch.no_grad, too

            @functools.wraps(function)
            async def stamped(*args: Any, **kwargs: Any) -> Any:
                if not target.outermost and _inside.get() is None:
                    return await function(*args, **kwargs)
                with self.call(target.name) as stamp:
                    result = await function(*args, **kwargs)
                    self._finish(target, stamp, result, args, kwargs)
                    return result
        else:

            @functools.wraps(function)
            def stamped(*args: Any, **kwargs: Any) -> Any:
                if not target.outermost and _inside.get() is None:
                    return function(*args, **kwargs)
                with self.call(target.name) as stamp:
                    result = function(*args, **kwargs)
                    self._finish(target, stamp, result, args, kwargs)
                    return result

        return stamped

    @contextmanager
    def call(self, name: str) -> Generator[dict[str, Any]]:
        """One call's stamp, which ends with the block, whether that fails or not; what is set in it is kept."""
        stamp = {"id": next(self._numbers), "parent": _inside.get(), "name": name, "start": self._now()}
        token = _inside.set(stamp["id"])
        try:
            yield stamp
        finally:
            _inside.reset(token)
            stamp["end"] = self._now()
            self._add(stamp)
            if stamp["parent"] is None or len(self._lines) > AT_ONCE:
                self.flush()

    def _finish(self, target: Target, stamp: dict, result: Any, args: tuple, kwargs: dict) -> None:
        if target.waits:
            self._wait()
        if target.follow is not None:
            target.follow(self, args[0])
        if target.note is not None:
            stamp["note"] = target.note(result, args, kwargs)

    def _add(self, line: dict) -> None:
        self._lines.append(line)

    def flush(self) -> None:
        """Write what is kept."""
        with self._lock:
            lines, self._lines = self._lines, []
            if lines:
                with (self._folder / f"{os.getpid()}.jsonl").open("a") as file:
                    file.write("".join(json.dumps(line) + "\n" for line in lines))


class Watched:
    """An object some of whose methods leave stamps, for classes that are no Python functions inside.

    Args:
        names: the stamp's name by the method's.
    """

    def __init__(self, recorder: Recorder, inner: Any, names: dict[str, str]) -> None:
        self._recorder, self._inner, self._names = recorder, inner, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name not in self._names:
            return found

        def stamped(*args: Any, **kwargs: Any) -> Any:
            with self._recorder.call(self._names[name]):
                return found(*args, **kwargs)

        return stamped


class Finder(importlib.abc.MetaPathFinder):
    """Asked first for every import: a wanted module is handed to `wrap` when it has been executed."""

    def __init__(self, wanted: Container[str], wrap: Callable[[ModuleType], None]) -> None:
        self._wanted, self._wrap, self._busy = wanted, wrap, set()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname not in self._wanted or fullname in self._busy:
            return None
        self._busy.add(fullname)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._busy.discard(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            self._wrap(module)

        spec.loader.exec_module = exec_module
        return spec
