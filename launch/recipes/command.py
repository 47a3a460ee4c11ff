"""`recipe list` and `recipe show`: the recipes there are, and the command line that one of them becomes."""

import json
import shlex
from typing import Any

from launch.recipes.fields import Recipe
from launch.recipes.files import load, names
from launch.recipes.overrides import resolve
from launch.recipes.settings import Paths

COLUMNS = ("recipe", "rollout", "training", "devices", "stack")
MAIN = "python -m ascend_quant.integrations.verl.main_ppo"


def row(recipe: Recipe) -> tuple[str, ...]:
    """A recipe in a line of the table; docs/low_precision.md has the same."""
    training = f"FP8 {recipe.fp8.recipe}" if recipe.fp8 else "BF16"
    training += f", QAT {recipe.qat}" if recipe.qat else ""
    devices = f"{recipe.nodes} x {recipe.devices_per_node} of {recipe.memory.device} GiB"
    return recipe.name, recipe.rollout.scheme, training, devices, recipe.stack


def rows() -> list[tuple[str, ...]]:
    """All recipes."""
    return [row(load(name)) for name in names()]


def described(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """For `--json`: the recipe, the overrides and the environment."""
    resolved = resolve(recipe, paths)
    return {
        "recipe": recipe.model_dump(),
        "main": MAIN,
        "overrides": list(resolved.overrides),
        "environment": resolved.environment,
    }


def shown(recipe: Recipe, paths: Paths) -> str:
    """For people: what it is, and a command that a shell takes as it stands."""
    facts = [
        recipe.summary,
        f"{'model:':<10} {recipe.model.hub}",
        *(f"{name + ':':<10} {value}" for name, value in zip(COLUMNS[1:], row(recipe)[1:], strict=True)),
        f"{'memory:':<10} {recipe.memory.device} GiB a device, {recipe.memory.host} GiB a host (by arithmetic)",
        f"{'ignored:':<10} {', '.join(recipe.rollout.ignore) or 'nothing but embeddings, lm_head, norms and routers'}",
    ]
    lines = [MAIN, *map(shlex.quote, resolve(recipe, paths).overrides)]
    return "\n".join([*(f"# {fact}" for fact in facts), " \\\n  ".join(lines)])


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1)
