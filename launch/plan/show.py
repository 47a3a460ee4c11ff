"""The text of --dry-run: a plan for people, host by host, with commands that a shell takes as they stand."""

import shlex
from collections.abc import Iterator
from typing import Any


def text(plan: dict[str, Any]) -> str:
    """The plan that `described` made."""
    return "\n".join([*_head(plan), *(line for host in plan["hosts"] for line in _host(host)), *_job(plan["job"])])


def _head(plan: dict[str, Any]) -> Iterator[str]:
    yield f"run {plan['run']}: {plan['recipe']} on stack {plan['stack']}, {len(plan['hosts'])} host(s)"
    yield f"writes to {plan['out']}"
    for note in plan["notes"]:
        yield f"note: {note}"


def _host(host: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield f"{host['role']} {host['host']}{' (this machine)' if host['here'] else ''}"
    if host["silent"]:
        yield f"  was not asked what it has: {host['silent']}"
    yield from (f"  would stop here: {problem}" for problem in host["problems"])
    for name in ("address", "nic", "devices"):
        yield f"  {name + ':':<9} {host[name]}"
    yield f"  start:    {host['start']}"
    if host["container"]:
        yield f"  container: {host['container']}"
        yield from (f"    mount {mount}" for mount in host["mounts"])
    yield "  checks before Ray starts:"
    yield from (f"    {check}" for check in host["checks"])
    yield "  environment (why each: docs/environment.md):"
    yield from (f"    {_variable(one)}" for one in host["environment"])
    yield f"  then:     {host['ray']}"


def _variable(one: dict[str, Any]) -> str:
    instead = "" if one["instead_of"] is None else f", instead of {one['instead_of']}"
    return f"{one['name']}={one['value']}  # {one['source']}{instead}"


def _job(job: dict[str, Any]) -> Iterator[str]:
    yield ""
    yield "job on the head, through Ray's job API"
    if job["files"]:
        yield f"  working directory: {', '.join(job['files'])}"
    yield from (f"  {name}={value}" for name, value in job["environment"].items())
    python, *arguments = job["entrypoint"]
    command, rest = arguments[:2], arguments[2:]
    yield "  " + " \\\n    ".join([shlex.join([python, *command]), *map(shlex.quote, rest)])
