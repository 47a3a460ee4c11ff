"""What a file for a cluster's own tools starts: a recipe's command, with the variables of launch/environment."""

from dataclasses import dataclass

from launch import LaunchError
from launch.cluster.inventory import Ports
from launch.environment.resolve import OF_DEVICES, OF_HOST, node_environment
from launch.plan import job as jobs
from launch.ray_jobs.plan import places
from launch.recipes import Recipe, resolve
from launch.recipes.stacks import pins

A2_DEVICES = 8  # of a node; an A3 has sixteen


@dataclass(frozen=True)
class Task:
    """A recipe's task on a cluster.

    Attributes:
        command: the driver's; it continues from the last checkpoint, as these tools start a failed job again.
        variables: of every process, the same on all nodes.
        of_node: variables that name a node's address or NIC, as the caller has written these.
        folders: that all nodes share, from the root of each path.
    """

    recipe: Recipe
    command: list[str]
    variables: dict[str, str]
    of_node: dict[str, str]
    folders: list[str]


def task(recipe: Recipe, model: str | None, data: str | None, out: str | None, address: str, nic: str) -> Task:
    """Make the task of a recipe; `address` and `nic` are what stands in the file for those of a node.

    Raises:
        LaunchError: a path is missing, or the recipe has files that the nodes do not have.
    """
    paths = places(recipe, model, data, out)
    resolved = resolve(recipe, paths)
    if resolved.files:
        raise LaunchError(f"{recipe.name} needs its files {', '.join(resolved.files)} on the nodes: use train instead")
    values = jobs.values(resolved.overrides, Ports())
    values |= {"address": address, "nic": nic, "family": "ipv4", "devices": "", "places": ""}
    settings = node_environment(recipe.stack, values, [("recipe", resolved.environment)])
    found = {one.name: one.value for one in settings if one.name not in OF_DEVICES}
    job = jobs.job(recipe.name, resolved, [("file", found)], restarts=1, paths=paths)
    of_node = {name: value for name, value in found.items() if name in OF_HOST}
    shared = [path for path in (paths.out, *jobs.needs(recipe, paths, resolved.overrides)) if path.startswith("/")]
    return Task(
        recipe,
        ["python", *job.entrypoint],
        {name: value for name, value in (found | job.environment).items() if name not in of_node},
        of_node,
        list(dict.fromkeys(f"/{path.split('/')[1]}" for path in shared)),
    )


def image(recipe: Recipe) -> str:
    """Return the tag of our image for a recipe."""
    chip = "-a2" if recipe.devices_per_node <= A2_DEVICES else "-a3"
    return recipe.stack + (chip if pins(recipe.stack).devices == "npu" else "")
