"""All hosts of an inventory: they examine themselves in parallel, then they are compared.

A host (launch/nodes/part.py) receives a Request and answers with its HostReport.
"""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby

from pydantic import TypeAdapter

from launch.cluster.inventory import Inventory
from launch.cluster.transport import command, converse
from launch.doctor.checking import Check, Finding, HostReport, Report, check, error, ok, warning
from launch.doctor.examination import examine_here, wanted_here, wanted_of
from launch.doctor.facts import Wanted
from launch.environment.network import is_here
from launch.plan.start import start_line
from launch.recipes.fields import Recipe
from launch.recipes.paths import Paths
from launch.recipes.stacks import pins

EXAMINE_SECONDS = 120  # long enough for a slow shared disk
CONNECT_SECONDS = 3
AT_ONCE = 32
MAY_DIFFER = ("driver",)


@dataclass(frozen=True)
class Request:
    """A request to a host: to examine itself, and to connect to these (host, port)."""

    host: str
    wanted: Wanted
    targets: list[tuple[str, int]]


REQUEST, REPORT = TypeAdapter(Request), TypeAdapter(HostReport)


def reaching(inventory: Inventory, index: int) -> list[str]:
    """Return the arguments that start a host's side, in its container if it has an image."""
    host = inventory.hosts[index]
    return command(inventory, index, start_line(inventory, index, devices=host.devices), is_here(host.address))


def examine(
    inventory: Inventory | None = None,
    recipe: Recipe | None = None,
    paths: Paths | None = None,
) -> Report:
    """Examine every host of the inventory, or only this machine without one.

    Args:
        recipe, paths: the planned run, for the checks of memory, devices and files.
    """
    if inventory is None:
        findings, traits = examine_here(wanted_here(recipe, paths))
        return Report([HostReport("this machine", findings, traits)])
    hosts = range(len(inventory.hosts))
    with ThreadPoolExecutor(len(hosts)) as pool:
        requests = [request(inventory, at, wanted_of(inventory, at, recipe, paths)) for at in hosts]
        answers = list(pool.map(lambda at: asked(reaching(inventory, at), requests[at]), hosts))
    reports = [one for one in answers if isinstance(one, HostReport)]
    silent = {inventory.hosts[at].address: one for at, one in enumerate(answers) if isinstance(one, str)}
    return Report(reports, [finding for one in TOGETHER for finding in one(reports, silent)])


def request(inventory: Inventory, index: int, wanted: Wanted) -> Request:
    """Return a host's request: for each other host, a port of Ray, one of HCCL on NPUs, and an ephemeral port.

    The latter is included because torch.distributed, TransferQueue and vLLM use ephemeral ports.
    """
    ports = [inventory.ports.workers, "50000"]
    ports += [inventory.ports.hccl_host] if pins(inventory.stack).devices == "npu" else []
    first = [int(one.partition("-")[0]) for one in ports if one != "auto"]
    others = [host.address for at, host in enumerate(inventory.hosts) if at != index]
    targets = [(other, port) for other in others for port in first]
    if index:
        targets += [(inventory.hosts[0].address, port) for port in (inventory.ports.ray, inventory.ports.dashboard)]
    return Request(inventory.hosts[index].address, wanted, targets)


def asked(command: list[str], question: Request) -> HostReport | str:
    """Ask a host for its report; return it, or why there is none."""
    task = {"doctor": REQUEST.dump_python(question, mode="json")}
    report, why = converse(command, task, question.host, EXAMINE_SECONDS)
    return why if report is None else REPORT.validate_python(report)


def answer_here(question: Request) -> HostReport:
    """Examine this host and return its report."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        reasons = pool.map(lambda target: reach(*target), question.targets)
        findings, traits = examine_here(question.wanted)
        unreached = [(*target, why) for target, why in zip(question.targets, reasons, strict=True) if why]
    return HostReport(question.host, findings, traits, unreached)


def reach(address: str, port: int) -> str | None:
    """Return None if a host answers on a port, even by refusing; otherwise why not: a firewall, or no route."""
    try:
        with socket.create_connection((address, port), timeout=CONNECT_SECONDS):
            return None
    except ConnectionRefusedError:
        return None
    except TimeoutError:
        return f"no answer within {CONNECT_SECONDS} s"
    except OSError as failure:
        return failure.strerror or str(failure)


@check("hosts.answer")
def answer(reports: list[HostReport], silent: dict[str, str]) -> Iterator[Finding]:
    for host, why in silent.items():
        yield error(f"{host}: {why}", f"try by hand: ssh {host} true")
    if not silent:
        yield ok(f"all {len(reports)} hosts")


@check("hosts.traits")
def alike(reports: list[HostReport], silent: dict[str, str]) -> Iterator[Finding]:
    names = dict.fromkeys(name for report in reports for name in report.traits)
    different = False
    for name in names:
        values = {report.host: report.traits.get(name, "none") for report in reports}
        if len(set(values.values())) > 1:
            different = True
            level = warning if name in MAY_DIFFER else error
            yield level(f"{name}: {_grouped(values)}", "use the same image, driver and checkout on all hosts")
    if len(reports) > 1 and not different:
        yield ok(f"{len(names)} versions and numbers are the same on all hosts")


def _grouped(values: dict[str, str]) -> str:
    """Group hosts by value: `2.9 on a, b; 2.10 on c`."""
    ordered = sorted(values, key=lambda host: values[host])
    return "; ".join(
        f"{value} on {', '.join(hosts)}" for value, hosts in groupby(ordered, key=lambda host: values[host])
    )


@check("hosts.reach")
def reached(reports: list[HostReport], silent: dict[str, str]) -> Iterator[Finding]:
    for report in reports:
        for end, port, why in report.unreached:
            fix = (
                f"open all ports between the hosts (on {end}: firewall-cmd --list-all, iptables -L), and check the "
                "route"
            )
            yield error(f"{report.host} does not reach {end} on port {port}: {why}", fix)
    if len(reports) > 1 and not any(report.unreached for report in reports):
        yield ok("all hosts reach each other")


TOGETHER = tuple(value for value in list(globals().values()) if isinstance(value, Check))
