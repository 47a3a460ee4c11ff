"""The output of `recipe show`: a recipe's properties and its command line."""

import shlex
from typing import Any

from launch.environment.variables import override_shown, secret, tree_shown, without_secrets
from launch.recipes.fields import Recipe
from launch.recipes.overrides import resolve
from launch.recipes.paths import Paths
from launch.recipes.verl import verl_of

COLUMNS = ("recipe", "rollout", "training", "devices", "stack")


def row(recipe: Recipe) -> tuple[str, ...]:
    """Return a recipe's row in the table of docs/low_precision.md, whose columns are COLUMNS."""
    training = f"FP8 {recipe.fp8_recipe}" if recipe.fp8 else "BF16"
    training += f", QAT {recipe.qat}" if recipe.qat else ""
    training = "exact INT8" if recipe.is_exact else training
    devices = f"{recipe.nodes} x {recipe.devices_per_node} of {recipe.memory.device} GiB"
    rollout = recipe.rollout.scheme
    rollout += f", KV {recipe.rollout.kv_cache}" if recipe.rollout.kv_cache != "auto" else ""
    return recipe.name, rollout, training, devices, recipe.stack


def described(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """Describe a recipe for `--json`: its fields, overrides, environment and files."""
    return {
        "recipe": tree_shown(recipe.model_dump()),
        "main": f"python -m {verl_of(recipe.stack).main}",
        "overrides": [override_shown(one) for one in resolve(recipe, paths)],
        "environment": without_secrets(recipe.environment),
        "files": recipe.files,
    }


def shown(recipe: Recipe, paths: Paths) -> str:
    """Return a recipe's properties and shell command as text; secrets must be set in the shell that runs it."""
    facts = [
        recipe.summary,
        f"{'model:':<10} {recipe.model.place}",
        *(f"{name + ':':<10} {value}" for name, value in zip(COLUMNS[1:], row(recipe)[1:], strict=True)),
        f"{'verl:':<10} {verl_of(recipe.stack).name}",
        f"{'data:':<10} {f'./run.sh data {recipe.data.name}' if recipe.data.name else recipe.data.train}",
        f"{'memory:':<10} {recipe.memory.device} GiB per device, {recipe.memory.host} GiB per host (estimated)",
        f"{'ignored:':<10} {', '.join(recipe.rollout.ignore) or 'nothing but embeddings, lm_head, norms and routers'}",
    ]
    lines = [f"python -m {verl_of(recipe.stack).main}"]
    lines += [shlex.quote(override_shown(one)) for one in resolve(recipe, paths)]
    before = [
        *(f"# {line}" for fact in facts for line in fact.splitlines()),
        *(f"export {name}={_exported(name, value)}" for name, value in recipe.environment.items()),
        *(f"cp {shlex.quote(file)} {shlex.quote(name)}" for name, file in recipe.files.items()),
    ]
    return "\n".join([*before, " \\\n  ".join(lines)])


def _exported(name: str, value: str) -> str:
    """Return the value to export: the shell's if set, else the recipe's; the value of a secret is not printed."""
    return f"${{{name}:?}}" if value and secret(name, value) else f"${{{name}:-{shlex.quote(value)}}}"
