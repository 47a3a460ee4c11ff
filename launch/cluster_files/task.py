"""The task that a file for a cluster's tools starts: a recipe's command, with the variables of launch/environment."""

from dataclasses import dataclass

from launch import LaunchError
from launch.cluster.inventory import Ports
from launch.environment.resolve import OF_DEVICES, OF_HOST, node_environment
from launch.plan import job as jobs
from launch.plan.wanted import needs
from launch.ray_jobs.plan import OF_NODE, places
from launch.recipes import Recipe
from launch.recipes.stacks import pins

A2_DEVICES = 8  # devices of an A2 node; an A3 node has sixteen


@dataclass(frozen=True)
class Task:
    """A recipe's task on a cluster.

    Attributes:
        recipe: the recipe.
        command: command of the driver, which continues from the last checkpoint if the tools restart the job.
        variables: variables of every process that are the same on all nodes.
        of_node: variables that contain a node's address or NIC, in the notation of the tool.
        folders: folders that all nodes share: the top-level folder of each path.
    """

    recipe: Recipe
    command: list[str]
    variables: dict[str, str]
    of_node: dict[str, str]
    folders: list[str]


def task(recipe: Recipe, model: str | None, data: str | None, out: str | None, address: str, nic: str) -> Task:
    """Return the task of a recipe; `address` and `nic` are placeholders for those of a node.

    Raises:
        LaunchError: a path is not given, or the recipe has files for the working directory.
    """
    paths = places(recipe, model, data, out)
    if recipe.files:
        raise LaunchError(f"{recipe.name} needs its files {', '.join(recipe.files)} on the nodes: use train instead")
    values = jobs.values(recipe, Ports()) | OF_NODE | {"address": address, "nic": nic}
    settings = node_environment(recipe.stack, values, [("recipe", recipe.environment)])
    found = {one.name: one.value for one in settings if one.name not in OF_DEVICES}
    job = jobs.job(recipe.name, recipe, paths, [("file", found)], restarts=1)
    of_node = {name: value for name, value in found.items() if name in OF_HOST}
    shared = [path for path in (paths.out, *needs(recipe, paths)) if path.startswith("/")]
    return Task(
        recipe,
        ["python", *job.entrypoint],
        {name: value for name, value in (found | job.environment).items() if name not in of_node},
        of_node,
        list(dict.fromkeys(f"/{path.split('/')[1]}" for path in shared)),
    )


def image(recipe: Recipe) -> str:
    """Return the tag of our image for a recipe's stack and devices."""
    chip = "-a2" if recipe.devices_per_node <= A2_DEVICES else "-a3"
    return recipe.stack + (chip if pins(recipe.stack).devices == "npu" else "")
