"""From a recipe and the folders of one run to the override arguments of verl's command line.

A plain `key=value` fails where verl has no such key, so a typo is found. `+key=value` stands only in the places that
verl leaves open: what it hands on to vLLM, Megatron and Ray (OPEN).
"""

from dataclasses import dataclass
from pathlib import Path

from launch.recipes.fields import Recipe
from launch.recipes.hydra_syntax import text
from launch.recipes.keys import DATA_PARALLEL, ENVIRONMENT, MODEL, OPTIMIZER, POLICY_LOSS, ROLLOUT, TRANSFORMER, VLLM
from launch.recipes.settings import Paths, folders, numerics, settings
from launch.recipes.trees import leaves
from launch.recipes.versions import verl_of
from launch.root import ROOT

# Open mappings of verl, and the keys that its defaults have in them.
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
    f"{POLICY_LOSS}.rollout_correction": (),
    f"{MODEL}.override_config": (),
    f"{ROLLOUT}.engine_kwargs.ascend_quant": (),
    "data.apply_chat_template_kwargs": (),
    "reward.reward_kwargs": (),
    "ray_kwargs.ray_init": ("num_cpus", "runtime_env.py_executable"),
}
UNLISTED = (f"{ROLLOUT}.enable_sleep_mode",)  # verl's engine knows it, and its defaults do not name it


@dataclass(frozen=True)
class Resolved:
    """What to run.

    Attributes:
        main: the module that starts it, for `python -m`.
        overrides: its arguments.
        environment: variables for every process; some of them the overrides hand on as well.
        files: what the working directory must hold: its name there, and the file.
    """

    main: str
    overrides: tuple[str, ...]
    environment: dict[str, str]
    files: dict[str, Path]


def resolve(recipe: Recipe, paths: Paths) -> Resolved:
    """The command of the verl that the recipe's stack pins."""
    verl = verl_of(recipe.stack)
    tree = settings(recipe) | folders(recipe, paths) | dict(leaves(recipe.verl))
    return Resolved(
        verl.main,
        tuple(f"{_plus(key)}{key}={text(value)}" for key, value in tree.items() if not verl.lacks(key)),
        {**numerics(recipe), **recipe.environment},
        {name: ROOT / file for name, file in recipe.files.items()},
    )


def _plus(key: str) -> str:
    if key in UNLISTED:
        return "+"
    for mapping, present in OPEN.items():
        if key.startswith(f"{mapping}."):
            return "" if key.removeprefix(f"{mapping}.") in present else "+"
    return ""
