"""Paths of a run: its model, its data, and its output folder."""

import os
from dataclasses import dataclass

from ascend_quant.recipes.keys import MODEL
from launch.recipes.fields import Recipe

CHOSEN = {  # settings that contain paths of the run, and the options that determine them
    f"{MODEL}.path": "--model",
    "data.train_files": "--data (or recipe.data.train=FILE)",
    "data.val_files": "--data (or recipe.data.validation=FILE)",
    "trainer.default_local_dir": "--out",
}


@dataclass(frozen=True)
class Paths:
    """Paths of one run: its model (a folder, or a hub id), its data folder, and its output folder."""

    model: str
    data: str
    out: str


def paths_of(recipe: Recipe, model: str | None, data: str, out: str | None) -> Paths:
    """Return the paths of a run; by default, the recipe's model, and an output folder with the recipe's name."""
    own = recipe.model.hub or os.path.join(data, recipe.model.folder or "")
    return Paths(model or own, data, out or f"runs/{recipe.name}")


def data_files(recipe: Recipe, paths: Paths) -> tuple[str, str]:
    """Return the training file and the validation file."""
    return os.path.join(paths.data, recipe.data.train), os.path.join(paths.data, recipe.data.validation)


def settings(recipe: Recipe, paths: Paths) -> dict[str, str]:
    """Return the verl settings that contain the run's paths."""
    values = (paths.model, *data_files(recipe, paths), f"{paths.out}/checkpoints")
    return dict(zip(CHOSEN, values, strict=True))
