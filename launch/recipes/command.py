"""`recipe list` and `recipe show`: the recipes there are, and the command line that one of them becomes."""

import json
import shlex
from typing import Any

from launch.recipes.fields import Recipe
from launch.recipes.files import load, names
from launch.recipes.overrides import resolve
from launch.recipes.settings import Paths
from launch.recipes.versions import verl_of

COLUMNS = ("recipe", "rollout", "training", "devices", "stack")


def row(recipe: Recipe) -> tuple[str, ...]:
    """A recipe in a line of the table; docs/recipes.md and docs/low_precision.md have the same."""
    training = f"FP8 {recipe.fp8.recipe}" if recipe.fp8 else "BF16"
    training += f", QAT {recipe.qat}" if recipe.qat else ""
    devices = f"{recipe.nodes} x {recipe.devices_per_node} of {recipe.memory.device} GiB"
    return recipe.name, recipe.rollout.scheme, training, devices, recipe.stack


def rows() -> list[tuple[str, ...]]:
    """All recipes."""
    return [row(load(name)) for name in names()]


def described(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """For `--json`: the recipe, the overrides, the environment and the files beside them."""
    resolved = resolve(recipe, paths)
    return {
        "recipe": recipe.model_dump(),
        "main": f"python -m {resolved.main}",
        "overrides": list(resolved.overrides),
        "environment": resolved.environment,
        "files": {name: str(file) for name, file in resolved.files.items()},
    }


def shown(recipe: Recipe, paths: Paths) -> str:
    """For people: what it is, and a command that a shell takes as it stands."""
    facts = [
        recipe.summary,
        f"{'model:':<10} {recipe.model.place}",
        *(f"{name + ':':<10} {value}" for name, value in zip(COLUMNS[1:], row(recipe)[1:], strict=True)),
        f"{'verl:':<10} {verl_of(recipe.stack).name}",
        f"{'data:':<10} {recipe.data.name} (./run.sh data {recipe.data.name})",
        f"{'memory:':<10} {recipe.memory.device} GiB a device, {recipe.memory.host} GiB a host (by arithmetic)",
        f"{'ignored:':<10} {', '.join(recipe.rollout.ignore) or 'nothing but embeddings, lm_head, norms and routers'}",
    ]
    resolved = resolve(recipe, paths)
    lines = [f"python -m {resolved.main}", *map(shlex.quote, resolved.overrides)]
    before = [
        *(f"# {fact}" for fact in facts),
        *(f'export {name}="${{{name}:-{value}}}"' for name, value in recipe.environment.items()),
        *(f"cp {shlex.quote(str(file))} {shlex.quote(name)}" for name, file in resolved.files.items()),
    ]
    return "\n".join([*before, " \\\n  ".join(lines)])


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1)
