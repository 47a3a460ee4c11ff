"""A recipe as a script for sbatch; this module writes its beginning, the rest is ray.sh."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from launch.cluster_files.task import Task, task
from launch.environment.variables import secret
from launch.recipes import Recipe
from launch.recipes.stacks import pins

REST = Path(__file__).with_name("ray.sh")
DEVICES = {"gpu": "gpus-per-node={}", "npu": "gres=npu:{}"}


def script(recipe: Recipe, model: str | None, data: str | None, out: str | None) -> str:
    """Return the script. Slurm requeues it after a node failure, and verl then continues from its last checkpoint.

    Raises:
        LaunchError: see `task`.
    """
    made = task(recipe, model, data, out, "$address", "$nic")
    return "\n".join([*_head(made), "", REST.read_text().rstrip()])


def _head(made: Task) -> Iterator[str]:
    recipe = made.recipe
    devices = DEVICES.get(pins(recipe.stack).devices)
    yield "#!/bin/bash"
    yield f"#SBATCH --job-name={recipe.name}"
    yield f"#SBATCH --nodes={recipe.nodes}"
    yield "#SBATCH --ntasks-per-node=1"
    if devices:
        yield f"#SBATCH --{devices.format(recipe.devices_per_node)}"
    yield "#SBATCH --exclusive"
    yield "#SBATCH --requeue"
    yield "#SBATCH --open-mode=append"
    yield "#SBATCH --output=%x-%j.out"
    yield ""
    yield f"# {' '.join(recipe.summary.split())}"
    yield f"# Activate the environment of stack {recipe.stack} here. docs/environment.md explains the variables."
    for name, value in made.variables.items():
        yield (
            f'export {name}="${{{name}:?}}"' if value and secret(name, value) else f"export {name}={shlex.quote(value)}"
        )
    yield "variables_of_node() {"
    yield from (f'  export {name}="{value}"' for name, value in made.of_node.items())
    yield "}"
    yield " \\\n  ".join(["command=(python", *map(shlex.quote, made.command[1:])]) + ")"
