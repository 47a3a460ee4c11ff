"""A lock as text: one entry a package, with the hashes of its files, and a marker where one platform alone has it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

ENTRY = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+?))?\s*\\?$")
HASH = re.compile(r"^\s+--hash=(?P<hash>sha256:[0-9a-f]{64})\s*\\?$")


@dataclass(frozen=True)
class Entry:
    """A package of a lock."""

    name: str
    version: str
    hashes: tuple[str, ...]
    marker: str | None = None

    def __str__(self) -> str:
        marker = f" ; {self.marker}" if self.marker else ""
        return " \\\n".join([f"{self.name}=={self.version}{marker}", *(f"    --hash={one}" for one in self.hashes)])


def parse(text: str) -> list[Entry]:
    """The entries of a lock; a package has one for each of its versions.

    Raises:
        ValueError: a line that is neither an entry, nor a hash, nor a comment; an entry without a hash.
    """
    entries: list[Entry] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if entry := ENTRY.match(line):
            entries.append(Entry(entry["name"], entry["version"], (), entry["marker"]))
        elif (found := HASH.match(line)) and entries:
            entries[-1] = replace(entries[-1], hashes=(*entries[-1].hashes, found["hash"]))
        else:
            raise ValueError(f"line {number} is not of a lock: {line!r}")
    if bare := [entry.name for entry in entries if not entry.hashes]:
        raise ValueError(f"no hash for {', '.join(bare)}")
    return entries


def merged(platforms: Mapping[str, Iterable[Entry]]) -> list[Entry]:
    """One list for all platforms (x86_64, aarch64): what some lack gets a marker with the machines that have it."""
    machines: dict[Entry, list[str]] = {}
    for machine, entries in platforms.items():
        for entry in entries:
            machines.setdefault(entry, []).append(machine)
    together = [
        entry if len(having) == len(platforms) else replace(entry, marker=_marker(having))
        for entry, having in machines.items()
    ]
    return sorted(together, key=lambda entry: (entry.name, entry.version))


def _marker(machines: Iterable[str]) -> str:
    return " or ".join(f"platform_machine == '{machine}'" for machine in machines)
