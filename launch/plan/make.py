"""Makes the plan of a run, which says what happens on each host, from a recipe, an inventory and the user's shell.

First it checks that recipe, inventory and paths fit together.
"""

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence

from launch import LaunchError
from launch.cluster.inventory import Host, Inventory
from launch.environment import network
from launch.environment.resolve import not_handed_on, of_shell, rows
from launch.inputs.model import of_hub
from launch.plan import Layer, NodePlan, Plan
from launch.plan import job as jobs
from launch.plan.job import under
from launch.plan.wanted import SAVE, needs, wanted_of
from launch.recipes import Paths, Recipe


def new_run() -> str:
    """Return a new run id: the start time and four random hex digits, in case two runs start at the same time."""
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"


def locals_of(inventory: Inventory) -> list[bool]:
    """Return whether each host is this machine."""
    found = network.nics()
    return [network.is_here(host.address, found) for host in inventory.hosts]


def make(
    recipe: Recipe,
    inventory: Inventory,
    paths: Paths,
    run: str,
    local: Sequence[bool],
    *,
    shell: Mapping[str, str],
    restarts: int = 0,
) -> Plan:
    """Make the plan of a run.

    Args:
        run: the run's id.
        local: whether each of the inventory's hosts is this machine.
        shell: the environment of this process.
        restarts: maximum number of restarts of a failed job.

    Raises:
        LaunchError: recipe, inventory and paths do not fit together; one line for each thing to change.
    """
    if found := list(problems(recipe, inventory, paths)):
        raise LaunchError("\n".join(found))
    hosts = inventory.hosts[: recipe.nodes]
    used = inventory.model_copy(update={"hosts": hosts})
    common = {
        "run": run,
        "head": hosts[0].address,
        "members": [one.address for one in hosts],
        "join_seconds": inventory.join_seconds,
        "socket_filter": inventory.socket_filter,
        "values": jobs.values(recipe, inventory.ports),
    }
    nodes = []
    for number, (host, here) in enumerate(zip(hosts, local, strict=False)):
        layers = layers_of(recipe, used, host, shell, here)
        own = {
            "host": number,
            "devices": devices_of(host, recipe.devices_per_node, recipe.stack, layers),
            "layers": layers,
            "environment": {name: value for _, variables in layers for name, value in variables.items()},
            "job": None if number else jobs.job(run, recipe, paths, layers, restarts),
        }
        nodes.append(NodePlan(**vars(wanted_of(used, number, recipe, paths)) | common | own))
    here = list(local[: len(hosts)])
    return Plan(run, recipe.name, used, nodes, here, notes(recipe, inventory, paths, shell, here, restarts))


def layers_of(recipe: Recipe, inventory: Inventory, host: Host, shell: Mapping[str, str], local: bool) -> list[Layer]:
    """Return the variables that the user set for a host, by source; later layers override earlier ones."""
    layers = [
        ("recipe", recipe.environment),
        ("inventory", inventory.environment),
        ("host", host.environment),
        ("shell", of_shell(shell, own=local)),
    ]
    return [(source, variables) for source, variables in layers if variables]


def devices_of(host: Host, wanted: int, stack: str, layers: Sequence[Layer]) -> int | list[int]:
    """Return the devices of a host that the run uses: a count, or their indices.

    Raises:
        LaunchError: the user's *_VISIBLE_DEVICES names too few devices, or names them other than by index.
    """
    names = [row.name for row in rows(stack) if row.value == "{places}"]
    said = [(source, name, variables[name]) for source, variables in layers for name in names if name in variables]
    if said:
        source, name, value = said[-1]
        try:
            visible = [int(part) for part in value.split(",")]
        except ValueError as error:
            where = f"{host.address}: {name}={value} ({source})"
            raise LaunchError(f"{where}: write comma-separated numbers, such as 0,1,2,3") from error
        if len(visible) < wanted:
            raise LaunchError(
                f"{host.address}: {name}={value} ({source}) names {len(visible)} devices, but the recipe "
                f"needs {wanted}: name more, or use fewer with -- trainer.n_gpus_per_node={len(visible)}"
            )
        return visible
    return host.devices[:wanted] if isinstance(host.devices, list) else wanted


def notes(
    recipe: Recipe,
    inventory: Inventory,
    paths: Paths,
    shell: Mapping[str, str],
    local: Sequence[bool],
    restarts: int,
) -> list[str]:
    """List notes for the reader of the plan, one line each."""
    lines = []
    if unused := [host.address for host in inventory.hosts[recipe.nodes :]]:
        lines.append(f"not used, as the recipe needs {recipe.nodes} hosts: {', '.join(unused)}")
    if not all(local) and (names := not_handed_on(shell)):
        lines.append(
            f"variables of this shell that are not passed to other hosts: {', '.join(names)}: each names a host's own "
            "NIC, address or devices. Write it under the host in the inventory"
        )
    if of_hub(paths.model):
        lines.append(f"the model {paths.model} is a hub id: each host uses its own cache, or downloads it")
    if recipe.data.train == recipe.data.validation:
        lines.append("validation uses the training data: --data TRAIN,VALIDATION names another file")
    if restarts and recipe.count(SAVE) is None:
        lines.append(
            f"a restart would start from the beginning, as no checkpoints are saved: set an interval with -- {SAVE}=10"
        )
    return lines


def problems(recipe: Recipe, inventory: Inventory, paths: Paths) -> Iterator[str]:
    """Yield all conflicts between recipe, inventory and paths, one line each, with the fix."""
    hosts = inventory.hosts[: recipe.nodes]
    if recipe.stack != inventory.stack:
        yield (
            f"stack: the recipe {recipe.name} is for {recipe.stack}, but the inventory's hosts have {inventory.stack}: "
            f"choose another recipe, or try -- stack={inventory.stack}"
        )
    if recipe.nodes > len(hosts):
        yield (
            f"nodes: the recipe {recipe.name} needs {recipe.nodes} hosts, but there is {len(hosts)}: name more with "
            f"--cluster, or use fewer with -- trainer.nnodes={len(hosts)}"
        )
    for host in hosts:
        there = len(host.devices) if isinstance(host.devices, list) else host.devices
        if there != "auto" and there < recipe.devices_per_node:
            yield (
                f"devices: the recipe {recipe.name} needs {recipe.devices_per_node} on each host, but the inventory "
                f"gives {host.address} {there}: give it more, or use fewer with -- trainer.n_gpus_per_node={there}"
            )
    if len(hosts) > 1 and not under(paths.out, inventory.shared):
        folders = ", ".join(inventory.shared) or "none in this inventory"
        yield (
            f"--out {paths.out}: checkpoints of several hosts must be in a folder that all of them share (`shared` in "
            f"the inventory: {folders})"
        )
    inside = [mount.split(":")[1].rstrip("/") for mount in inventory.mounts]
    for path in [paths.out, *needs(recipe, paths)] if inventory.image else []:
        if not under(path, inside):
            yield (
                f"{path}: the container does not mount this path: add it to `mounts` in the inventory, as {path}:{path}"
            )
