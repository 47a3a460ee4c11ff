"""The output of --dry-run, which queries the hosts and describes the plan as text or JSON.

Each host reports its own NIC and devices. A host that does not answer is shown with the reason, and without the
variables and Ray command that depend on them.

The description consists of plain values for --json: everything that the run would do, without secrets. The text
contains commands that can be pasted into a shell.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launch import LaunchError
from launch.environment import network
from launch.environment.network import Wire
from launch.environment.resolve import node_environment
from launch.environment.variables import override_shown, shown, without_secrets
from launch.plan import Job, NodePlan, Plan
from launch.plan.start import container_name, mounts

Ask = Callable[[Plan, int], dict[str, Any]]


def ask_all(plan: Plan, ask: Ask) -> list[dict[str, Any]]:
    """Query all hosts concurrently; return their answers, or under `silent` why there is none."""

    def one(node: NodePlan) -> dict[str, Any]:
        try:
            return ask(plan, node.host)
        except LaunchError as error:
            return {"chosen": {}, "problems": [], "silent": " ".join(str(error).splitlines())}

    with ThreadPoolExecutor(len(plan.nodes)) as threads:
        return list(threads.map(one, plan.nodes))


def described(plan: Plan, answers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
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


def host(plan: Plan, node: NodePlan, answer: Mapping[str, Any]) -> dict[str, Any]:
    """Describe one host of the plan; what it has not chosen is None."""
    from launch.cluster.transport import command_of

    number, image = node.host, plan.inventory.image
    return {
        "host": node.address,
        "role": node.role,
        "here": plan.local[number],
        "silent": answer.get("silent"),
        "problems": answer["problems"],
        **dict.fromkeys(("address", "nic", "devices", "ray")),
        "environment": [],
        "start": shlex.join(command_of(plan, number)),
        "container": container_name(plan.run, number) if image else None,
        "mounts": mounts(plan.inventory) if image else [],
        "needs": node.needs,
        "ports": network.needed_ports(node.role, node.ports),
        **(of_host(node, answer["chosen"]) if answer["chosen"] and None not in answer["chosen"].values() else {}),
    }


def of_host(node: NodePlan, chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Describe what follows from a host's own choice of NIC and devices, without secrets."""
    from launch.nodes.ray_node import start_command

    wire, lists = chosen["wire"], {name: ",".join(map(str, chosen[name])) for name in ("devices", "places")}
    environment = [
        {
            "name": one.name,
            "value": shown(one.name, one.value),
            "source": one.source,
            "instead_of": one.instead_of and shown(one.name, one.instead_of),
        }
        for one in node_environment(node.stack, {**node.values, **wire, **lists}, node.layers)
    ]
    return {
        "address": wire["address"],
        "nic": wire["nic"],
        "devices": lists["devices"],
        "environment": environment,
        "ray": shlex.join(start_command(node, Wire(**wire), len(chosen["devices"]))),
    }


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
    known = host["ray"] is not None
    for name in ("address", "nic", "devices") if known else ():
        yield f"  {name + ':':<9} {host[name]}"
    yield f"  start:    {host['start']}"
    if host["container"]:
        yield f"  container: {host['container']}"
        yield from (f"    mount {mount}" for mount in host["mounts"])
    yield f"  needs:    {', '.join(host['needs'])}"
    yield f"  ports:    {', '.join(f'{port} ({name})' for port, name in host['ports'].items())}"
    if known:
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
