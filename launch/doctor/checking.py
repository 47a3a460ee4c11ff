"""A check, what it finds, and the report of all that was found.

A check is a small function from facts to findings; a finding has a level, what was found and what to do about it.
docs/doctor.md has a row for each check.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

LONGEST = 300  # characters of an exception's message
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
ORDER = ("ok", "warning", "error")
Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """Result of one look at one thing.

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
    """Findings of one host.

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
    """Findings of all hosts, and those of comparing them."""

    hosts: list[HostReport]
    together: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings, those of comparing hosts last."""
        return [*(finding for host in self.hosts for finding in host.findings), *self.together]

    @property
    def exit_code(self) -> int:
        """Exit status: 1 where there is an error, else 0, as warnings do not stop a run."""
        return int(any(finding.level == "error" for finding in self.findings))

    def as_json(self) -> str:
        """Serialize the report for programs."""
        return json.dumps(asdict(self) | {"exit_code": self.exit_code}, indent=1)


def ok(what: str) -> Finding:
    """Return a finding that all is well. The check gives its name to what it finds, here as below."""
    return Finding("ok", "", what)


def warning(what: str, fix: str) -> Finding:
    """Return a finding that a run would start, and may be slow or fail later."""
    return Finding("warning", "", what, fix)


def error(what: str, fix: str) -> Finding:
    """Return a finding that a run would fail."""
    return Finding("error", "", what, fix)


@dataclass(frozen=True)
class Check:
    """Wrapper of a function that yields what it found; nothing where it does not apply.

    A host's checks take (Facts, Wanted); those that compare hosts take (reports of the hosts, why others are silent).
    """

    name: str
    find: Callable[..., Iterator[Finding]]

    def __call__(self, *given: Any) -> list[Finding]:
        """Return the check's findings; its own failure, or facts that could not be gathered, are a finding too."""
        findings = []
        try:
            for found in self.find(*given):
                findings.append(replace(found, check=self.name))
        except Exception as failure:
            what = f"could not look: {type(failure).__name__}: {' '.join(str(failure).split())[:LONGEST]}"
            fix = "is /proc mounted? Else report this as a bug, with the output of --json"
            findings.append(Finding("error", self.name, what, fix))
        return findings


def check(name: str) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Make a check of a function."""
    return lambda find: Check(name, find)


def show(report: Report, console: Console) -> None:
    """Print the table, the fixes, and a last line that sums up."""
    table = Table("check", *(host.host for host in report.hosts))
    for name in dict.fromkeys(finding.check for host in report.hosts for finding in host.findings):
        cells = [[finding for finding in host.findings if finding.check == name] for host in report.hosts]
        table.add_row(name, *(_cell(findings) for findings in cells))
    if report.hosts:
        console.print(table)
    for finding in report.together:
        console.print(Text.assemble(_level(finding), f" {finding.check}: {finding.what}"))
    _fixes(report, console)
    console.print(_summary(report), soft_wrap=True)


def _cell(findings: list[Finding]) -> Text:
    """Format the lines of one check on one host, each behind its level."""
    return Text("\n").join(Text.assemble(_level(finding), f" {finding.what}") for finding in findings)


def _level(finding: Finding) -> tuple[str, str]:
    return finding.level, STYLES[finding.level]


def _fixes(report: Report, console: Console) -> None:
    """Print what to do, errors first, each once with the hosts that it is for."""
    todo: dict[Finding, list[str]] = {}
    for host in report.hosts:
        for finding in host.findings:
            todo.setdefault(finding, []).append(host.host)
    for finding in report.together:
        todo.setdefault(finding, [])
    for finding in sorted(todo, key=lambda finding: -ORDER.index(finding.level)):
        if finding.level != "ok":
            where = f" on {', '.join(todo[finding])}" if len(report.hosts) > 1 and todo[finding] else ""
            console.print()
            console.print(Text.assemble(_level(finding), f" {finding.check}{where}: {finding.what}"), soft_wrap=True)
            console.print(f"  fix: {finding.fix}", soft_wrap=True, markup=False, highlight=False)


def _summary(report: Report) -> Text:
    count = Counter(finding.level for finding in report.findings)
    text = f"\n{_plural(count['error'], 'error')}, {_plural(count['warning'], 'warning')}, {count['ok']} ok"
    end = "a run would fail" if count["error"] else "a run can start"
    return Text(f"{text}: {end}. Each check is described in docs/doctor.md", style="bold")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"
