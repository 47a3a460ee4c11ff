"""Findings of checks, and the report.

A check is a function that yields problems, each with its fix; nothing if all is well, or if it does not apply.
docs/doctor.md has a row for each check.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

from rich.console import Console
from rich.text import Text

LONGEST = 300  # characters of an exception's message
STYLES = {"warning": "yellow", "error": "bold red"}


@dataclass(frozen=True)
class Finding:
    """The result of one check: a problem, or `ok` if it found none."""

    level: Literal["ok", "warning", "error"]
    check: str  # name of the check, as in docs/doctor.md
    what: str  # description, with the value
    fix: str = ""  # what to do; empty if all is well


Checks = Mapping[str, Callable[..., Iterable[Finding]]]


def error(what: str, fix: str) -> Finding:
    """Return a problem that would make a run fail."""
    return Finding("error", "", what, fix)


def warning(what: str, fix: str) -> Finding:
    """Return a problem with which a run starts, but may be slow or fail later."""
    return Finding("warning", "", what, fix)


def findings_of(checks: Checks, *given: Any) -> list[Finding]:
    """Return what each check finds in what is given; a check that fails is a problem, too."""
    found: list[Finding] = []
    for name, check in checks.items():
        try:
            problems = list(check(*given))
        except Exception as failure:
            what = f"the check itself failed: {type(failure).__name__}: {' '.join(str(failure).split())[:LONGEST]}"
            problems = [error(what, "is /proc mounted? If it is, report this as a bug, with the output of --json")]
        found += [replace(one, check=name) for one in problems] or [Finding("ok", name, "no problem found")]
    return found


@dataclass(frozen=True)
class HostReport:
    """The findings of one host.

    Attributes:
        traits: values that must be equal on all hosts, by name: versions, the chip, the number of devices.
    """

    host: str
    findings: list[Finding]
    traits: dict[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Report:
    """The findings of all hosts, and those of comparing them."""

    hosts: list[HostReport]
    together: list[Finding] = field(default_factory=list[Finding])

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


def show(report: Report, console: Console) -> None:
    """Print each host's versions, each problem once, with its hosts and fix, and a summary line."""
    for host in report.hosts:
        traits = ", ".join(f"{name} {value}" for name, value in host.traits.items())
        console.print(f"{host.host}: {traits}", soft_wrap=True, markup=False, highlight=False)
    for finding, hosts in report.where.items():
        if finding.level == "ok":
            continue
        on = f" on {', '.join(hosts)}" if hosts and len(report.hosts) > 1 else ""
        said = Text.assemble((finding.level, STYLES[finding.level]), f" {finding.check}{on}: {finding.what}")
        console.print(said, soft_wrap=True)
        console.print(f"  fix: {finding.fix}", soft_wrap=True, markup=False, highlight=False)
    count = Counter(finding.level for finding in report.findings)
    end = "a run would fail" if count["error"] else "a run can start"
    text = f"\nerrors: {count['error']}, warnings: {count['warning']}, ok: {count['ok']}; {end}"
    console.print(f"{text}. Each check is described in docs/doctor.md", style="bold", soft_wrap=True, highlight=False)
