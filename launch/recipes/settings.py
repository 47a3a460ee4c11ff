"""The settings of verl that a recipe's fields make, by their dotted keys; its `verl` tree comes on top."""

from dataclasses import dataclass
from typing import Any

from launch.recipes.correction import correction_settings
from launch.recipes.fields import Recipe
from launch.recipes.keys import ENVIRONMENT, MODEL
from launch.recipes.rollout import rollout_settings
from launch.recipes.training import training_settings


@dataclass(frozen=True)
class Paths:
    """Where one run finds its model (a folder, or a hub id) and its data, and where it writes."""

    model: str
    data: str
    out: str


def paths_of(recipe: Recipe, model: str | None, data: str, out: str | None) -> Paths:
    """The paths of a run; what was not said is the recipe's: its model, which may lie among the data, and its name."""
    own = recipe.model.hub or f"{data}/{recipe.model.folder}"
    return Paths(model or own, data, out or f"runs/{recipe.name}")


def folders(recipe: Recipe, paths: Paths) -> dict[str, Any]:
    """The settings that name files."""
    return {
        f"{MODEL}.path": paths.model,
        "data.train_files": f"{paths.data}/{recipe.data.train}",
        "data.val_files": f"{paths.data}/{recipe.data.validation}",
        "trainer.default_local_dir": f"{paths.out}/checkpoints",
    }


def settings(recipe: Recipe) -> dict[str, Any]:
    """All others."""
    return {
        **rollout_settings(recipe),
        **correction_settings(recipe.correction),
        **training_settings(recipe),
        "trainer.nnodes": recipe.nodes,
        "trainer.n_gpus_per_node": recipe.devices_per_node,
        "trainer.experiment_name": recipe.name,
        **{f"{ENVIRONMENT}.{name}": value for name, value in numerics(recipe).items()},
    }


def numerics(recipe: Recipe) -> dict[str, str]:
    """Variables on which results depend: verl hands them to every process, and no shell's value replaces them."""
    if recipe.fp8 and recipe.fp8.recipe == "blockwise":  # scales in float32, as the rollout's, not powers of two
        return {"NVTE_FP8_BLOCK_SCALING_FP32_SCALES": "1"}
    return {}
