"""A plan as plain values, for `--dry-run --json` and for the text of --dry-run: all that would be done, no secret."""

import re
import shlex
from collections.abc import Sequence
from typing import Any

from launch.environment.merge import node_environment
from launch.environment.users import shown
from launch.plan.asked import Answer
from launch.plan.fields import Job, NodePlan, Plan
from launch.plan.job import key
from launch.plan.start import mounts


def described(plan: Plan, answers: Sequence[Answer]) -> dict[str, Any]:
    """The whole plan; `answers` are what the hosts said."""
    return {
        "run": plan.run,
        "recipe": plan.recipe,
        "stack": plan.inventory.stack,
        "out": plan.out,
        "notes": plan.notes,
        "hosts": [host(plan, node, answer) for node, answer in zip(plan.nodes, answers, strict=True)],
        "job": job(next(node.job for node in plan.nodes if node.job)),
    }


def host(plan: Plan, node: NodePlan, answer: Answer) -> dict[str, Any]:
    """One host."""
    from launch.cluster.transport import command
    from launch.nodes.ray_node import start_command

    number = node.host
    start = command(plan.inventory, plan.inventory.hosts[number], plan.start[number], local=plan.local[number])
    return {
        "host": node.address,
        "role": node.role,
        "here": plan.local[number],
        "silent": answer.silent,
        "problems": answer.problems,
        "address": answer.wire.address,
        "nic": answer.wire.nic,
        "devices": answer.devices,
        "start": shlex.join(start),
        "container": plan.containers[number],
        "mounts": mounts(plan.inventory) if plan.containers[number] else [],
        "checks": checks(node),
        "environment": environment(node, answer),
        "ray": shlex.join(start_command(node, answer.wire, count(node))),
    }


def environment(node: NodePlan, answer: Answer) -> list[dict[str, str | None]]:
    """The host's variables, with secrets hidden."""
    wire = answer.wire
    values = {"address": wire.address, "nic": wire.nic, "family": wire.family, "devices": answer.devices}
    return [
        {
            "name": one.name,
            "value": shown(one.name, one.value),
            "source": one.source,
            "instead_of": one.instead_of and shown(one.name, one.instead_of),
            "why": one.why,
        }
        for one in node_environment(node.stack, {**node.values, **values}, node.layers)
    ]


def checks(node: NodePlan) -> list[str]:
    """What must be right on the host before Ray starts."""
    from launch.nodes.ports import needed

    ports = ", ".join(f"{port} ({name})" for port, name in needed(node.role, node.ports).items())
    return [
        *(f"{path} exists" for path in node.needs),
        *([f"can import {', '.join(one.module for one in node.imports)}"] if node.imports else []),
        f"devices: {count(node)}",
        f"free ports: {ports}",
        *(_joining(node) if len(node.members) > 1 else []),
    ]


def _joining(node: NodePlan) -> list[str]:
    return [
        "the same versions and the same time as on the other hosts",
        f"all {len(node.members)} hosts join within {node.join_seconds} s",
    ]


def count(node: NodePlan) -> int:
    """How many devices a host gives to the run."""
    return len(node.devices) if isinstance(node.devices, list) else node.devices


def job(job: Job) -> dict[str, Any]:
    """The job of the head."""
    return {
        "entrypoint": ["python", *map(_hidden, job.entrypoint)],
        "files": list(job.files),
        "environment": {name: shown(name, value) for name, value in job.environment.items()},
    }


def _hidden(argument: str) -> str:
    name, equals, value = argument.partition("=")
    last_word = re.split(r"[._]", key(name))[-1]  # api_key is a secret, max_token_len is none
    return f"{name}={shown(last_word, value)}" if equals else argument
