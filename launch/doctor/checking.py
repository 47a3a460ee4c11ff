"""Checks, their findings, and the report.

A check is a small function from facts to findings; a finding has a level, a description and a fix. docs/doctor.md has a
row for each check.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

LONGEST = 300  # characters of an exception's message
STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """The result of one check of one thing."""

    level: Level
    check: str  # name of the check, as in docs/doctor.md
    what: str  # description, with the value
    fix: str = ""  # what to do; empty if all is well


@dataclass(frozen=True)
class HostReport:
    """The findings of one host.

    Attributes:
        traits: values that must be equal on all hosts, by name: versions, the chip, the number of devices.
    """

    host: str
    findings: list[Finding]
    traits: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Report:
    """The findings of all hosts, and those of comparing them."""

    hosts: list[HostReport]
    together: list[Finding] = field(default_factory=list)

    @property
    def findings(self) -> list[Finding]:
        """All findings, those of comparing hosts last."""
        return [*(finding for host in self.hosts for finding in host.findings), *self.together]

    @property
    def where(self) -> dict[Finding, list[str]]:
        """The hosts of each finding, which equal findings share; none of those of comparing hosts."""
        hosts: dict[Finding, list[str]] = {}
        for host in self.hosts:
            for finding in host.findings:
                hosts.setdefault(finding, []).append(host.host)
        return hosts | {finding: [] for finding in self.together}

    @property
    def exit_code(self) -> int:
        """The exit status: 1 if there is an error, otherwise 0, since warnings do not stop a run."""
        return int(any(finding.level == "error" for finding in self.findings))

    def as_json(self) -> str:
        """Return the report as JSON."""
        return json.dumps(asdict(self) | {"exit_code": self.exit_code}, indent=1)


ok, warning, error = (partial(Finding, level, "") for level in STYLES)  # the check adds its name to its findings


@dataclass(frozen=True)
class Check:
    """A function that yields findings, or nothing if it does not apply.

    Checks of a host take its Facts; those that compare hosts take (reports of hosts, reasons of hosts without
    one).
    """

    name: str
    find: Callable[..., Iterator[Finding]]

    def __call__(self, *given: Any) -> list[Finding]:
        """Return the check's findings; a failure of the check, or of gathering its facts, is also a finding."""
        findings = []
        try:
            for found in self.find(*given):
                findings.append(replace(found, check=self.name))
        except Exception as failure:
            what = f"the check itself failed: {type(failure).__name__}: {' '.join(str(failure).split())[:LONGEST]}"
            fix = "is /proc mounted? If it is, report this as a bug, with the output of --json"
            findings.append(Finding("error", self.name, what, fix))
        return findings


def check(name: str) -> Callable[[Callable[..., Iterator[Finding]]], Check]:
    """Register a function as a check."""
    return lambda find: Check(name, find)


def show(report: Report, console: Console) -> None:
    """Print each finding once, with its hosts and fix, then a summary line."""
    for finding, hosts in report.where.items():
        on = f" on {', '.join(hosts)}" if hosts and len(report.hosts) > 1 else ""
        said = Text.assemble((finding.level, STYLES[finding.level]), f" {finding.check}{on}: {finding.what}")
        console.print(said, soft_wrap=True)
        if finding.fix:
            console.print(f"  fix: {finding.fix}", soft_wrap=True, markup=False, highlight=False)
    count = Counter(finding.level for finding in report.findings)
    end = "a run would fail" if count["error"] else "a run can start"
    text = f"\nerrors: {count['error']}, warnings: {count['warning']}, ok: {count['ok']}; {end}"
    console.print(f"{text}. Each check is described in docs/doctor.md", style="bold", soft_wrap=True, highlight=False)
