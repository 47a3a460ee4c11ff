"""The report for people: a table with a column for each host, then what to do."""

from collections.abc import Iterable

from rich.console import Console
from rich.table import Table
from rich.text import Text

from launch.doctor.checking import Finding, Report

STYLES = {"ok": "green", "warning": "yellow", "error": "bold red"}
ORDER = ("ok", "warning", "error")


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
    """The lines of one check on one host, each behind its level."""
    return Text("\n").join(Text.assemble(_level(finding), f" {finding.what}") for finding in findings)


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
            console.print(Text.assemble(_level(finding), f" {finding.check}{where}: {finding.what}"), soft_wrap=True)
            console.print(f"  fix: {finding.fix}", soft_wrap=True, markup=False, highlight=False)


def _summary(report: Report) -> Text:
    count = {level: _count(report.findings, level) for level in ORDER}
    text = f"\n{_plural(count['error'], 'error')}, {_plural(count['warning'], 'warning')}, {count['ok']} ok"
    end = "a run would fail" if count["error"] else "a run can start"
    return Text(f"{text}: {end}. Each check is described in docs/doctor.md", style="bold")


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _count(findings: Iterable[Finding], level: str) -> int:
    return sum(finding.level == level for finding in findings)
