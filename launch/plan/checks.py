"""Whether a recipe, an inventory, the paths of a run and a user's own settings of verl, behind `--`, go together.

Each function is a subject and yields problems.
"""

import re
from collections.abc import Iterator, Sequence

from ascend_quant.integrations.verl import attention_settings as attention
from launch.inventory.fields import Inventory
from launch.plan.job import key, last_value, needs, under
from launch.recipes import Paths, Recipe
from launch.recipes.overrides import refused
from launch.recipes.versions import verl_of

ULYSSES = tuple(
    f"actor_rollout_ref.{role}.{engine}ulysses_sequence_parallel_size"
    for role in ("actor", "ref")
    for engine in ("", "fsdp_config.")
)
SETTING = re.compile(r"(?:\+\+?|~)?[A-Za-z_][\w./@-]*")


def problems(recipe: Recipe, inventory: Inventory, paths: Paths) -> list[str]:
    """Everything that does not go together, a line each, with what to change."""
    subjects = (_stack, _hosts, _devices, _shared, _mounted)
    return [problem for subject in subjects for problem in subject(recipe, inventory, paths)]


def _stack(recipe: Recipe, inventory: Inventory, _: Paths) -> Iterator[str]:
    if recipe.stack != inventory.stack:
        yield (
            f"stack: the recipe {recipe.name} is for {recipe.stack}, the inventory's hosts have {inventory.stack}: "
            f"take another recipe, or try --set stack={inventory.stack}"
        )


def _hosts(recipe: Recipe, inventory: Inventory, _: Paths) -> Iterator[str]:
    there = len(inventory.hosts)
    if recipe.nodes > there:
        yield (
            f"nodes: the recipe {recipe.name} wants {recipe.nodes} hosts, and there is {there}: name more with "
            f"--cluster, or use fewer with --set nodes={there}"
        )


def _devices(recipe: Recipe, inventory: Inventory, _: Paths) -> Iterator[str]:
    for host in inventory.hosts[: recipe.nodes]:
        there = len(host.devices) if isinstance(host.devices, list) else host.devices
        if there != "auto" and there < recipe.devices_per_node:
            yield (
                f"devices: the recipe {recipe.name} wants {recipe.devices_per_node} on each host, the inventory gives "
                f"{host.address} {there}: give it more, or use fewer with --set devices_per_node={there}"
            )


def _shared(recipe: Recipe, inventory: Inventory, paths: Paths) -> Iterator[str]:
    if min(recipe.nodes, len(inventory.hosts)) > 1 and not under(paths.out, inventory.shared):
        folders = ", ".join(inventory.shared) or "none in this inventory"
        yield (
            f"--out {paths.out}: checkpoints of several hosts must lie in a folder that all of them share "
            f"(`shared` of the inventory: {folders})"
        )


def _mounted(recipe: Recipe, inventory: Inventory, paths: Paths) -> Iterator[str]:
    if inventory.image is None:
        return
    inside = [mount.split(":")[1].rstrip("/") for mount in inventory.mounts]
    for path in [paths.out, *needs(recipe, paths)]:
        if not under(path, inside):
            yield f"{path}: the container would not see it: add it to `mounts` of the inventory, as {path}:{path}"


def without_exchange(overrides: Sequence[str]) -> str | None:
    """Why the attention cannot compute with sequence parallelism, by verl's settings as the user leaves them."""
    said = [last_value(overrides, key, "1") for key in ULYSSES]
    ranks = max([1, *(int(one) for one in said if one.isdecimal())])  # another value is verl's to refuse, or to look up
    return attention.without_exchange(last_value(overrides, attention.NAME_KEY, attention.FLASH), ranks)


def extra_problems(recipe: Recipe, extra: Sequence[str]) -> Iterator[str]:
    """A line for each that is no setting, or none that a user may give."""
    for one in extra:
        name, equals, _ = one.partition("=")
        if not SETTING.fullmatch(name) or "\0" in one or not (equals or one.startswith("~")):
            yield f"{one[:200]!r} is no setting of verl: write key=value behind --, as -- trainer.save_freq=10"
    keys, verl = [key(one) for one in extra], verl_of(recipe.stack)
    yield from (f"-- {line}" for line in refused(recipe, keys))
    for name in keys:
        if part := verl.lacks(name):
            yield f"-- {name}: verl {verl.name}, of stack {recipe.stack}, has no {verl.absent[part]}: leave it out"
