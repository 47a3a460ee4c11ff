"""What stamped processes have left (see stamping.py): each call with the calls in it."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Stamp:
    """One call, with the calls in it."""

    process: str
    name: str
    start: float
    end: float
    note: Any = None
    inside: list["Stamp"] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def own(self) -> float:
        """Without the calls in it."""
        return self.seconds - sum(one.seconds for one in self.inside)

    def all(self) -> Iterator["Stamp"]:
        """This one, and those in it."""
        yield self
        for one in self.inside:
            yield from one.all()

    def named(self, *names: str) -> list["Stamp"]:
        return [one for one in self.all() if one.name in names]


@dataclass(frozen=True)
class Stamps:
    """What a training's processes have left.

    Attributes:
        roots: calls in no other, by their start.
        found, missing: targets that were stamped somewhere, and those that were not where they should be.
    """

    roots: list[Stamp]
    found: set[str]
    missing: set[str]


def read(folder: Path) -> Stamps:
    """Every process's; of one that was killed, what it had written, its last line cut or not."""
    roots, found, missing = [], set(), set()
    for file in sorted(folder.glob("*.jsonl")):
        lines = [one for one in map(_parsed, file.read_text().splitlines()) if one is not None]
        found |= {one["stamped"] for one in lines if "stamped" in one}
        missing |= {one["missing"] for one in lines if "missing" in one}
        roots += trees(file.stem, [one for one in lines if "id" in one])
    return Stamps(sorted(roots, key=lambda one: one.start), found, missing)


def _parsed(line: str) -> dict | None:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None


def trees(process: str, lines: Sequence[dict]) -> list[Stamp]:
    """A process's calls, each in the one that it happened in; those whose outer call never ended stand alone."""
    stamps = {one["id"]: Stamp(process, one["name"], one["start"], one["end"], one.get("note")) for one in lines}
    roots = []
    for one in lines:
        outer = stamps.get(one["parent"])
        (roots if outer is None else outer.inside).append(stamps[one["id"]])
    for stamp in stamps.values():
        stamp.inside.sort(key=lambda one: one.start)
    return roots


def gaps(stamp: Stamp) -> list[tuple[float, float]]:
    """When a call was in none of the calls in it."""
    found, at = [], stamp.start
    for one in stamp.inside:
        found.append((at, max(at, one.start)))
        at = max(at, one.end)
    return [*found, (at, max(at, stamp.end))]


def overlap(one: tuple[float, float], other: tuple[float, float]) -> float:
    return max(0.0, min(one[1], other[1]) - max(one[0], other[0]))
