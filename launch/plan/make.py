"""From a recipe, an inventory and the user's shell to the plan of a run: what happens on each host."""

import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any

from launch import network
from launch.environment import not_handed_on, of_shell, rows
from launch.errors import LaunchError
from launch.inventory.fields import Host, Inventory
from launch.plan import job as jobs
from launch.plan.checks import problems, without_exchange
from launch.plan.fields import Layer, NodePlan, Plan
from launch.plan.imports import imports
from launch.plan.job import columns, needs, saving
from launch.plan.start import container_name, start_line
from launch.recipes import Paths, Recipe, resolve
from launch.recipes.effective import told


def new_run() -> str:
    """The id of a run: when it began, and some letters so that two can begin at once."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def locals_of(inventory: Inventory) -> list[bool]:
    """Which hosts are this machine."""
    found = network.nics()
    return [network.is_here(host.address, found) for host in inventory.hosts]


def make(
    recipe: Recipe,
    inventory: Inventory,
    paths: Paths,
    run: str,
    local: Sequence[bool],
    extra: Sequence[str] = (),
    *,
    shell: Mapping[str, str],
    restarts: int = 0,
) -> Plan:
    """The plan of a run.

    Args:
        run: its id.
        local: which of the inventory's hosts are this machine.
        extra: verl overrides of the user.
        shell: the environment of this process.
        restarts: how often a failed job starts again.

    Raises:
        LaunchError: recipe, inventory and paths do not go together; a line for each thing to change.
    """
    if found := problems(recipe, inventory, paths):
        raise LaunchError("\n".join(found))
    hosts, resolved = inventory.hosts[: recipe.nodes], resolve(recipe, paths)
    used = inventory.model_copy(update={"hosts": hosts})
    layers = [layers_of(resolved.environment, used, one, shell, here) for one, here in zip(hosts, local, strict=False)]
    overrides = [*resolved.overrides, *extra]
    if found := without_exchange(overrides):
        raise LaunchError(found)
    values = jobs.values(overrides, used.ports)
    head_job = jobs.job(resolved, extra, layers[0], restarts, paths)
    modules = imports(recipe, overrides)
    common = {
        "values": values,
        "needs": needs(recipe, paths, overrides),
        "columns": columns(overrides),
        "imports": modules,
    }
    of_head = {"job": head_job, "saving": saving(recipe, overrides, paths)}
    numbers, shm = range(len(hosts)), max(recipe.memory.host // 2, 1)
    return Plan(
        run=run,
        recipe=recipe.name,
        out=paths.out,
        inventory=used,
        nodes=[
            node(recipe, used, number, run, layers[number], **common, **({} if number else of_head))
            for number in numbers
        ],
        start=[start_line(used, number, run=run, shm=shm) for number in numbers],
        containers=[container_name(run, number) if used.image else None for number in numbers],
        local=list(local[: len(hosts)]),
        notes=notes(recipe, inventory, paths, shell, local[: len(hosts)], overrides, restarts),
    )


def node(recipe: Recipe, inventory: Inventory, number: int, run: str, layers: list[Layer], **more: Any) -> NodePlan:
    """The plan of one host; the first is the head. `more`: fields that do not depend on the host."""
    host, ports = inventory.hosts[number], inventory.ports
    return NodePlan(
        run=run,
        role="worker" if number else "head",
        stack=recipe.stack,
        host=number,
        address=host.address,
        nic=host.nic,
        devices=devices_of(host, recipe.devices_per_node, recipe.stack, layers),
        head=inventory.hosts[0].address,
        ports={"ray": ports.ray, "dashboard": ports.dashboard, "workers": ports.workers},
        members=[one.address for one in inventory.hosts],
        layers=layers,
        join_seconds=inventory.join_seconds,
        **more,
    )


def layers_of(
    recipe: Mapping[str, str], inventory: Inventory, host: Host, shell: Mapping[str, str], local: bool
) -> list[Layer]:
    """What the users say of a host's environment, the strongest last."""
    layers = [
        ("recipe", dict(recipe)),
        ("inventory", inventory.environment),
        ("host", host.environment),
        ("shell", of_shell(shell, own=local)),
    ]
    return [(source, variables) for source, variables in layers if variables]


def devices_of(host: Host, wanted: int, stack: str, layers: Sequence[Layer]) -> int | list[int]:
    """The devices of a host that the run uses: how many of those that are there, or their numbers.

    Raises:
        LaunchError: a user's *_VISIBLE_DEVICES names too few, or not by numbers.
    """
    names = [row.name for row in rows(stack) if row.value == "{devices}"]
    said = [(source, name, variables[name]) for source, variables in layers for name in names if name in variables]
    if said:
        source, name, value = said[-1]
        if not all(part.strip().isdecimal() for part in value.split(",")):
            raise LaunchError(f"{host.address}: {name}={value} ({source}): write numbers with commas, as 0,1,2,3")
        visible = [int(part) for part in value.split(",")]
        if len(visible) < wanted:
            raise LaunchError(
                f"{host.address}: {name}={value} ({source}) names {len(visible)} devices, the recipe wants {wanted}: "
                f"name more, or use fewer with --set devices_per_node={len(visible)}"
            )
        return visible
    return host.devices[:wanted] if isinstance(host.devices, list) else wanted


def notes(
    recipe: Recipe,
    inventory: Inventory,
    paths: Paths,
    shell: Mapping[str, str],
    local: Sequence[bool],
    overrides: Sequence[str],
    restarts: int,
) -> list[str]:
    """What a reader of the plan should know, a line each."""
    lines = [f"importance weights: {told(recipe)}"]
    if unused := [host.address for host in inventory.hosts[recipe.nodes :]]:
        lines.append(f"not used, the recipe wants {recipe.nodes} hosts: {', '.join(unused)}")
    if not all(local) and (names := not_handed_on(shell)):
        lines.append(
            f"of this shell, not handed to other hosts: {', '.join(names)}: each names a host's own NIC, address or "
            "devices. Write it under the host in the inventory"
        )
    if not paths.model.startswith("/"):
        lines.append(f"the model is {paths.model} of the hub: each host downloads it, or has it in its cache")
    if restarts and jobs.last_value(overrides, jobs.SAVE, "-1") == "-1":
        lines.append(f"a restart begins anew: no checkpoints are saved. Say how often: -- {jobs.SAVE}=10")
    return lines
