"""All hosts of an inventory: they examine themselves in parallel, then they are compared.

A host (launch/nodes/part.py) receives what is wanted of it and answers with its HostReport.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby

from pydantic import TypeAdapter

from launch.cluster.inventory import Inventory
from launch.cluster.transport import command, converse
from launch.doctor.checking import Checks, Finding, HostReport, Report, error, findings_of, warning
from launch.doctor.examination import examined
from launch.doctor.facts import Facts
from launch.environment.network import is_here
from launch.plan import Wanted
from launch.plan.start import start_line
from launch.plan.wanted import wanted_here, wanted_of
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths

EXAMINE_SECONDS = 120  # long enough for a slow shared disk
MAY_DIFFER = ("driver",)
REQUEST, REPORT = TypeAdapter(Wanted), TypeAdapter(HostReport)


def examine(inventory: Inventory | None = None, recipe: Recipe | None = None, paths: Paths | None = None) -> Report:
    """Examine every host of the inventory, or only this machine without one.

    Args:
        recipe, paths: the planned run, for the checks of memory, devices and files.
    """
    if inventory is None:
        return Report([answer_here(wanted_here(recipe, paths))])
    numbers = range(len(inventory.hosts))
    wanted = [wanted_of(inventory, at, recipe, paths) for at in numbers]
    with ThreadPoolExecutor(len(numbers)) as pool:
        answers = list(pool.map(asked, [reaching(inventory, at) for at in numbers], wanted))
    reports = [one for one in answers if isinstance(one, HostReport)]
    silent = {inventory.hosts[at].address: one for at, one in enumerate(answers) if isinstance(one, str)}
    return Report(reports, findings_of(TOGETHER, reports, silent))


def reaching(inventory: Inventory, index: int) -> list[str]:
    """Return the arguments that start a host's side, in its container if it has an image."""
    host = inventory.hosts[index]
    return command(inventory, index, start_line(inventory, index, devices=host.devices), is_here(host.address))


def asked(command: list[str], wanted: Wanted) -> HostReport | str:
    """Ask a host for its report; return it, or why there is none."""
    task = {"doctor": REQUEST.dump_python(wanted, mode="json")}
    report, why = converse(command, task, wanted.address or "", EXAMINE_SECONDS)
    return why if report is None else REPORT.validate_python(report)


def answer_here(wanted: Wanted) -> HostReport:
    """Examine this host and return its report."""
    facts = Facts(wanted)
    return HostReport(wanted.address or "this machine", examined(facts), facts.traits)


def answer(reports: list[HostReport], silent: dict[str, str]) -> Iterator[Finding]:
    """Check that every host answers (DeepSpeed issue 4907)."""
    for host, why in silent.items():
        yield error(f"{host}: {why}", f"try by hand: ssh {host} true")


def traits(reports: list[HostReport], silent: dict[str, str]) -> Iterator[Finding]:
    """Check that all hosts have the same software and devices (ray issue 44063)."""
    for name in dict.fromkeys(name for report in reports for name in report.traits):
        values = {report.host: report.traits.get(name, "none") for report in reports}
        if len(set(values.values())) > 1:
            level = warning if name in MAY_DIFFER else error
            yield level(f"{name}: {_grouped(values)}", "use the same image, driver and checkout on all hosts")


def _grouped(values: dict[str, str]) -> str:
    """Group hosts by value: `2.9 on a, b; 2.10 on c`."""
    ordered = sorted(values, key=values.__getitem__)
    return "; ".join(f"{value} on {', '.join(hosts)}" for value, hosts in groupby(ordered, key=values.__getitem__))


TOGETHER: Checks = {"hosts.answer": answer, "hosts.traits": traits}
