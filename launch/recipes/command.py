"""What `recipe list`, `recipe show` and `recipe advise` say of a recipe: its row, its command line, its load."""

import json
import shlex
from typing import Any

from ascend_quant.advise.workloads import Workload
from launch.recipes.effective import told
from launch.recipes.fields import Recipe
from launch.recipes.files import RecipeError, load, names
from launch.recipes.hydra_syntax import ROLLOUT, leaves
from launch.recipes.overrides import resolve
from launch.recipes.rules import is_count
from launch.recipes.settings import Paths, settings
from launch.recipes.versions import verl_of
from launch.variables import override_shown, secret, tree_shown, without_secrets

COLUMNS = ("recipe", "rollout", "training", "devices", "stack")
MAX_NUM_SEQS, TRAIN_BATCH_SIZE = 256, 1024  # verl's, where a recipe has none
A3_DIES = 16  # of a node; an A2 has eight devices
H100_GIB = 80


def row(recipe: Recipe) -> tuple[str, ...]:
    """A recipe in a line of the table; docs/recipes.md and docs/low_precision.md have the same."""
    training = f"FP8 {recipe.fp8.recipe}" if recipe.fp8 else "BF16"
    training += f", QAT {recipe.qat}" if recipe.qat else ""
    devices = f"{recipe.nodes} x {recipe.devices_per_node} of {recipe.memory.device} GiB"
    rollout = recipe.rollout.scheme
    rollout += f", KV {recipe.rollout.kv_cache}" if recipe.rollout.kv_cache != "auto" else ""
    return recipe.name, rollout, training, devices, recipe.stack


def rows() -> list[tuple[str, ...]]:
    """All recipes."""
    return [row(load(name)) for name in names()]


def described(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """For `--json`: the recipe, the overrides, the environment and the files beside them."""
    resolved = resolve(recipe, paths)
    return {
        "recipe": tree_shown(recipe.model_dump()),
        "main": f"python -m {resolved.main}",
        "overrides": [override_shown(one) for one in resolved.overrides],
        "environment": without_secrets(resolved.environment),
        "files": {name: str(file) for name, file in resolved.files.items()},
    }


def shown(recipe: Recipe, paths: Paths) -> str:
    """For people: what it is, and a command that a shell takes as it stands, where secrets are in its environment."""
    facts = [
        recipe.summary,
        f"{'model:':<10} {recipe.model.place}",
        *(f"{name + ':':<10} {value}" for name, value in zip(COLUMNS[1:], row(recipe)[1:], strict=True)),
        f"{'verl:':<10} {verl_of(recipe.stack).name}",
        f"{'data:':<10} {recipe.data.name} (./run.sh data {recipe.data.name})",
        f"{'memory:':<10} {recipe.memory.device} GiB a device, {recipe.memory.host} GiB a host (by arithmetic)",
        f"{'ignored:':<10} {', '.join(recipe.rollout.ignore) or 'nothing but embeddings, lm_head, norms and routers'}",
        f"{'weights:':<10} {told(recipe)}",
    ]
    resolved = resolve(recipe, paths)
    lines = [f"python -m {resolved.main}", *map(shlex.quote, map(override_shown, resolved.overrides))]
    before = [
        *(f"# {line}" for fact in facts for line in fact.splitlines()),
        *(f"export {name}={_exported(name, value)}" for name, value in recipe.environment.items()),
        *(f"cp {shlex.quote(str(file))} {shlex.quote(name)}" for name, file in resolved.files.items()),
    ]
    return "\n".join([*before, " \\\n  ".join(lines)])


def _exported(name: str, value: str) -> str:
    """What the shell's environment has already, or else the recipe's value; a secret is not printed."""
    return f"${{{name}:?}}" if value and secret(name, value) else f"${{{name}:-{shlex.quote(value)}}}"


def as_json(value: Any) -> str:
    return json.dumps(value, indent=1)


def workload_of(recipe: Recipe, inputs: int | None = None, outputs: int | None = None) -> Workload:
    """One engine of it: the prompts in flight, times n, shared by the replicas.

    Args:
        inputs, outputs: tokens of a prompt and of an answer; as long as the recipe allows if None.

    Raises:
        RecipeError: a setting of the recipe's `verl` tree is no whole number above 0.
    """
    tree = settings(recipe) | dict(leaves(recipe.verl))
    tp, dp = recipe.rollout.tensor_parallel, count(tree, f"{ROLLOUT}.data_parallel_size", 1)
    replicas = max(1, recipe.generating_devices // (tp * dp))
    return Workload(
        tp=tp,
        dp=dp,
        expert_parallel=recipe.rollout.expert_parallel > 1,
        batch=max(1, -(-prompts(tree) * recipe.rollout.n // replicas)),
        inputs=inputs or recipe.rollout.max_prompt_length,
        outputs=outputs or recipe.rollout.max_response_length,
        memory=recipe.rollout.gpu_memory_utilization,
        eager=bool(tree.get(f"{ROLLOUT}.enforce_eager", False)),
        limit=count(tree, f"{ROLLOUT}.max_num_seqs", MAX_NUM_SEQS),
    )


def prompts(tree: dict[str, Any]) -> int:
    """Prompts in flight: with dynamic sampling several batches of them."""
    batches = count(tree, "algorithm.filter_groups.max_inflight_gen_batches", 1)
    batch = count(tree, "data.train_batch_size", TRAIN_BATCH_SIZE)
    return batch * (batches if tree.get("algorithm.filter_groups.enable") else 1)


def count(tree: dict[str, Any], key: str, default: int) -> int:
    """A setting that is a whole number above 0; raises RecipeError if it is none."""
    value = tree.get(key, default)
    if not is_count(value):
        raise RecipeError(f"verl: {key}: {value!r}: a whole number above 0 is needed")
    return value


def device_of(recipe: Recipe) -> str:
    """The device that it is written for, by its stack, its devices a node and the memory that it asks of one.

    Raises:
        RecipeError: it is for none that the estimate knows.
    """
    if recipe.stack == "cpu":
        raise RecipeError(f"{recipe.name} is for CPUs, which the estimate does not know: give --device")
    if recipe.stack == "cuda13":
        return "H100" if recipe.memory.device <= H100_GIB else "H200"
    return "A3" if recipe.devices_per_node == A3_DIES else "A2"
