"""The output of --dry-run, which queries the hosts and describes the plan as text or JSON.

Each host reports its own NIC and devices. A host that does not answer is shown with placeholders and the reason.

The description consists of plain values for --json: everything that the run would do, without secrets. The text
contains commands that can be pasted into a shell.
"""

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from ipaddress import ip_address
from typing import Any

from launch import LaunchError
from launch.environment import network
from launch.environment.network import Wire
from launch.environment.resolve import node_environment
from launch.environment.variables import override_shown, shown, without_secrets
from launch.plan import Job, NodePlan, Plan
from launch.plan.start import container_name, mounts

Ask = Callable[[Plan, int], dict[str, Any]]


@dataclass(frozen=True)
class Answer:
    """Answer of a host to --dry-run.

    Attributes:
        values: the host's values for the templates of the environment table; placeholders for those not known.
        silent: why there is no answer; None if the host has answered.
        problems: problems that would stop the run on this host.
    """

    values: dict[str, str]
    silent: str | None = None
    problems: list[str] = field(default_factory=list)


def ask_all(plan: Plan, ask: Ask) -> list[Answer]:
    """Query all hosts concurrently and return their answers."""

    def one(node: NodePlan) -> Answer:
        try:
            facts = ask(plan, node.host)
        except LaunchError as error:
            return Answer(values(node, {}), " ".join(str(error).splitlines()))
        return Answer(values(node, facts["chosen"]), problems=facts["problems"])

    with ThreadPoolExecutor(len(plan.nodes)) as threads:
        return list(threads.map(one, plan.nodes))


def values(node: NodePlan, chosen: Mapping[str, Any]) -> dict[str, str]:
    """Return a host's values for the templates: those that it chose, or else what the plan says of them."""
    try:
        address = str(ip_address(node.address))
    except ValueError:
        address = f"<address of {node.address}>"
    if isinstance(node.devices, list):
        devices = joined(node.devices)
        places = f"<places of {devices} among those there>"
    else:
        devices, places = f"<the first {node.devices} devices>", joined(range(node.devices))
    nic = f"<NIC with address {node.address}>" if node.nic == "auto" else node.nic
    known = {name: joined(chosen[name]) for name in ("devices", "places") if chosen.get(name) is not None}
    planned = {"nic": nic, "address": address, "family": "ipv6" if ":" in address else "ipv4"}
    return {**planned, "devices": devices, "places": places, **(chosen.get("wire") or {}), **known}


def joined(numbers: Iterable[int]) -> str:
    """Join numbers with commas."""
    return ",".join(map(str, numbers))


def described(plan: Plan, answers: Sequence[Answer]) -> dict[str, Any]:
    """Describe the whole plan as plain values, with the answers of its hosts."""
    return {
        "run": plan.run,
        "recipe": plan.recipe,
        "stack": plan.inventory.stack,
        "out": plan.nodes[0].out,
        "notes": plan.notes,
        "hosts": [host(plan, node, answer) for node, answer in zip(plan.nodes, answers, strict=True)],
        "job": job(plan.job),
    }


def host(plan: Plan, node: NodePlan, answer: Answer) -> dict[str, Any]:
    """Describe one host of the plan."""
    from launch.cluster.transport import command_of
    from launch.nodes.ray_node import start_command

    number, of_host = node.host, answer.values
    devices = len(node.devices) if isinstance(node.devices, list) else node.devices
    return {
        "host": node.address,
        "role": node.role,
        "here": plan.local[number],
        "silent": answer.silent,
        "problems": answer.problems,
        **{name: of_host[name] for name in ("address", "nic", "devices")},
        "start": shlex.join(command_of(plan, number)),
        "container": container_name(plan.run, number) if plan.inventory.image else None,
        "mounts": mounts(plan.inventory) if plan.inventory.image else [],
        "needs": node.needs,
        "ports": network.needed_ports(node.role, node.ports),
        "environment": environment(node, of_host),
        "ray": shlex.join(start_command(node, Wire(of_host["nic"], of_host["address"], of_host["family"]), devices)),
    }


def environment(node: NodePlan, of_host: Mapping[str, str]) -> list[dict[str, str | None]]:
    """Describe the host's environment variables, without secrets."""
    return [
        {
            "name": one.name,
            "value": shown(one.name, one.value),
            "source": one.source,
            "instead_of": one.instead_of and shown(one.name, one.instead_of),
        }
        for one in node_environment(node.stack, {**node.values, **of_host}, node.layers)
    ]


def job(job: Job) -> dict[str, Any]:
    """Describe the job that the head submits."""
    return {
        "entrypoint": ["python", *map(override_shown, job.entrypoint)],
        "files": list(job.files),
        "environment": without_secrets(job.environment),
    }


def text(plan: dict[str, Any]) -> str:
    """Format a description, of hosts or of a Ray cluster; the last lines list the problems that would stop the run."""
    hosts = [line for one in plan.get("hosts", []) for line in _host(one)]
    return "\n".join([*_head(plan), *hosts, *_job(plan["job"]), *_end(in_the_way(plan))])


def _head(plan: dict[str, Any]) -> Iterator[str]:
    where = f"{len(plan['hosts'])} host(s)" if "hosts" in plan else plan["ray"]
    yield f"run {plan['run']}: {plan['recipe']} on stack {plan['stack']}, {where}"
    yield f"writes to {plan['out']}"
    for note in plan["notes"]:
        yield f"note: {note}"


def _host(host: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{host['role']} {host['host']}{' (this machine)' if host['here'] else ''}"
    for name in ("address", "nic", "devices"):
        yield f"  {name + ':':<9} {host[name]}"
    yield f"  start:    {host['start']}"
    if host["container"]:
        yield f"  container: {host['container']}"
        yield from (f"    mount {mount}" for mount in host["mounts"])
    yield f"  needs:    {', '.join(host['needs'])}"
    yield f"  ports:    {', '.join(f'{port} ({name})' for port, name in host['ports'].items())}"
    yield "  environment (why each: docs/environment.md):"
    yield from (f"    {_variable(one)}" for one in host["environment"])
    yield f"  then:     {host['ray']}"


def _variable(one: dict[str, Any]) -> str:
    instead = "" if one["instead_of"] is None else f", instead of {one['instead_of']}"
    return f"{one['name']}={one['value']}  # {one['source']}{instead}"


def _job(job: dict[str, Any]) -> Iterator[str]:
    """Yield the lines that describe a job as text."""
    yield ""
    yield "job on the head, through Ray's job API"
    if job["files"]:
        yield f"  working directory: {', '.join(job['files'])}"
    yield from (f"  {name}={value}" for name, value in job["environment"].items())
    python, *arguments = job["entrypoint"]
    command, rest = arguments[:2], arguments[2:]
    yield "  " + " \\\n    ".join([shlex.join([python, *command]), *map(shlex.quote, rest)])


def in_the_way(plan: dict[str, Any]) -> list[str]:
    """Return the problems that would stop the run; one that several hosts share is listed once, with their names."""
    found: dict[str, list[str]] = {}
    for host in plan.get("hosts", []):
        silent = [f"could not be checked: {host['silent']}"] if host["silent"] else []
        for line in [*silent, *host["problems"]]:
            found.setdefault(line, []).append(host["host"])
    return [*plan.get("problems", []), *(f"{', '.join(where)}: {line}" for line, where in found.items())]


def _end(problems: Sequence[str]) -> Iterator[str]:
    """Yield what stops the run, with the fixes."""
    yield ""
    if not problems:
        yield "no problems found: the same command without --dry-run starts the run"
        return
    yield f"{len(problems)} problems would stop the run:" if len(problems) > 1 else "this problem would stop the run:"
    yield from (f"  {line}" for line in problems)
