"""A check, what it finds, and the report of all that was found.

A check is a small function from facts to findings; a finding has a level, what was found and what to do about it.
docs/doctor.md has a row for each check.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple

from launch.doctor.facts import NotGathered

AS_A_BUG = "report this as a bug, with the output of --json"
LONGEST = 300  # characters of an exception's message
Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        check: its name, as in docs/doctor.md.
        what: what was found, with the value.
        fix: what to do; empty where all is well.
    """

    level: Level
    check: str
    what: str
    fix: str = ""


@dataclass(frozen=True)
class HostReport:
    """One host.

    Attributes:
        traits: what must be alike on all hosts, by name: versions, the chip, the number of devices.
        unreached: (host, port, why) of each connection to another host that could not be made.
    """

    host: str
    findings: list[Finding]
    traits: dict[str, str] = field(default_factory=dict)
    unreached: list[tuple[str, int, str]] = field(default_factory=list)


@dataclass(frozen=True)
class Report:
    """All hosts, and what was found by comparing them."""

    hosts: list[HostReport]
    together: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings."""
        return [*(finding for host in self.hosts for finding in host.findings), *self.together]

    @property
    def exit_code(self) -> int:
        """1 where there is an error, else 0: warnings do not stop a run."""
        return int(any(finding.level == "error" for finding in self.findings))

    def as_json(self) -> str:
        """For programs."""
        return json.dumps(asdict(self) | {"exit_code": self.exit_code}, indent=1)


class Said(NamedTuple):
    """A finding before it has the name of its check."""

    level: Level
    what: str
    fix: str = ""


def ok(what: str) -> Said:
    """All is well."""
    return Said("ok", what)


def warning(what: str, fix: str) -> Said:
    """A run would start, and may be slow or fail later."""
    return Said("warning", what, fix)


def error(what: str, fix: str) -> Said:
    """A run would fail."""
    return Said("error", what, fix)


@dataclass(frozen=True)
class Check:
    """A function that yields what it found; nothing where it does not apply.

    A host's checks take (Facts, Wanted); those that compare hosts take (reports of the hosts, why others are silent).
    """

    name: str
    find: Callable[..., Iterator[Said]]

    def __call__(self, *given: Any) -> list[Finding]:
        """Its findings. A check that fails itself is a finding too: it must not hide the others.

        One that reads what could not be gathered has no more to say: that is a finding already (examination.py).
        """
        findings = []
        try:
            for said in self.find(*given):
                findings.append(Finding(said.level, self.name, said.what, said.fix))
        except NotGathered:
            pass
        except Exception as failure:
            what = f"the check itself failed: {in_short(failure)}"
            findings.append(Finding("error", self.name, what, AS_A_BUG))
        return findings


def in_short(failure: Exception) -> str:
    """An exception in one line."""
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:LONGEST]}"


def check(name: str) -> Callable[[Callable[..., Iterator[Said]]], Check]:
    """Make a check of a function."""
    return lambda find: Check(name, find)
