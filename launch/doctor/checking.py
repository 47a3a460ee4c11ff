"""A check: a small function from facts to findings, and the texts about it that docs/doctor.md is made of."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from launch.doctor.report import Finding, Level


class Text(NamedTuple):
    """The same in English and in Chinese."""

    en: str
    zh: str


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

    A host's checks take (Facts, Wanted), those that compare hosts take (reports of the hosts, Meeting).

    Attributes:
        name: as the report and docs/doctor.md have it.
        looks_at: what it looks at.
        means: what its findings mean for a run.
        fix: what to do about them.
    """

    name: str
    looks_at: Text
    means: Text
    fix: Text
    find: Callable[..., Iterator[Said]]

    def __call__(self, *given: Any) -> list[Finding]:
        """Its findings. A check that fails itself is a finding too: it must not hide the others."""
        try:
            return [Finding(said.level, self.name, said.what, said.fix) for said in self.find(*given)]
        except Exception as failure:
            what = f"the check itself failed: {type(failure).__name__}: {failure}"
            return [Finding("error", self.name, what, "report this as a bug, with the output of --json")]


def check(name: str, *, looks_at: tuple[str, str], means: tuple[str, str], fix: tuple[str, str]) -> Callable:
    """Make a check of a function; each text is given in English and in Chinese."""
    return lambda find: Check(name, Text(*looks_at), Text(*means), Text(*fix), find)
