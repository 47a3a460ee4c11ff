"""The report for people: a table with a column for each host, then what to do."""

import re
from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.doctor.checking import Finding, Report

STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
ORDER = ("ok", "warning", "error")
LONGEST = 600  # characters of a fix
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # a device's tool may print any; a terminal obeys them


def show(report: Report, console: Console) -> None:
    """Print the table, the fixes, and a last line that sums up."""
    table = Table("check", *(host.host for host in report.hosts))
    for name in dict.fromkeys(finding.check for host in report.hosts for finding in host.findings):
        cells = [[finding for finding in host.findings if finding.check == name] for host in report.hosts]
        table.add_row(name, *(_cell(findings) for findings in cells))
    if report.hosts:
        console.print(table)
    for finding in report.together:
        console.print(Text.assemble(_level(finding), f" {finding.check}: {_plain(finding.what)}"))
    _fixes(report, console)
    console.print(_summary(report), soft_wrap=True)


def _cell(findings: list[Finding]) -> Text:
    """The lines of one check on one host, each behind its level."""
    return Text("\n").join(Text.assemble(_level(finding), f" {_plain(finding.what)}") for finding in findings)


def _plain(text: str) -> str:
    """What controls a terminal, as Python would write it."""
    return CONTROL.sub(lambda found: ascii(found.group())[1:-1], text)


def _level(finding: Finding) -> tuple[str, str]:
    return finding.level, STYLES[finding.level]


def _fixes(report: Report, console: Console) -> None:
    """What to do, errors first, each once with the hosts that it is for."""
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
            console.print(
                Text.assemble(_level(finding), f" {finding.check}{where}: {_plain(finding.what)}"), soft_wrap=True
            )
            console.print(f"  fix: {_plain(_short(finding.fix))}", soft_wrap=True, markup=False, highlight=False)


def _short(fix: str) -> str:
    """A command that names hundreds of files is not to be read, nor to be copied by halves."""
    return (
        fix
        if len(fix) <= LONGEST
        else f"{fix[:60]} .. ({len(fix.split())} words: the whole is in ./run.sh doctor --json)"
    )


def _summary(report: Report) -> Text:
    count = {level: _count(report.findings, level) for level in ORDER}
    text = f"\n{_plural(count['error'], 'error')}, {_plural(count['warning'], 'warning')}, {count['ok']} ok"
    end = "a run would fail" if count["error"] else "a run can start"
    return Text(f"{text}: {end}. Each check is described in docs/doctor.md", style="bold")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _count(findings: Iterable[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)
