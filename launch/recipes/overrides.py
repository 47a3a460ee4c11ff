"""From a recipe and the folders of one run to the override arguments of verl's command line.

A plain `key=value` fails where verl has no such key, so a typo is found. `+key=value` stands only in the places that
verl leaves open: what it hands on to vLLM, Megatron and Ray (OPEN).
"""

from dataclasses import dataclass

from launch.recipes.fields import Recipe
from launch.recipes.hydra_syntax import text
from launch.recipes.settings import (
    DATA_PARALLEL,
    ENVIRONMENT,
    OPTIMIZER,
    TRANSFORMER,
    VLLM,
    Paths,
    environment,
    folders,
    settings,
)
from launch.recipes.trees import leaves

# Open mappings of verl 0.9.1, and the keys that its defaults have in them.
OPEN: dict[str, tuple[str, ...]] = {
    TRANSFORMER: (
        "recompute_granularity",
        "recompute_modules",
        "recompute_method",
        "recompute_num_layers",
        "attention_backend",
    ),
    DATA_PARALLEL: (),
    OPTIMIZER: (),
    VLLM: (),
    ENVIRONMENT: (),
    "actor_rollout_ref.model.override_config": (),
    "actor_rollout_ref.rollout.engine_kwargs.ascend_quant": (),
    "data.apply_chat_template_kwargs": (),
    "ray_kwargs.ray_init": ("num_cpus", "runtime_env.py_executable"),
}


@dataclass(frozen=True)
class Resolved:
    """What to run: override arguments, and the environment variables that they already hand to every process."""

    overrides: tuple[str, ...]
    environment: dict[str, str]


def resolve(recipe: Recipe, paths: Paths) -> Resolved:
    """The overrides of verl 0.9.1 for `python -m ascend_quant.integrations.verl.main_ppo`."""
    tree = settings(recipe) | folders(recipe, paths) | dict(leaves(recipe.verl))
    return Resolved(tuple(f"{_plus(key)}{key}={text(value)}" for key, value in tree.items()), environment(recipe))


def _plus(key: str) -> str:
    for mapping, present in OPEN.items():
        if key.startswith(f"{mapping}."):
            return "" if key.removeprefix(f"{mapping}.") in present else "+"
    return ""
