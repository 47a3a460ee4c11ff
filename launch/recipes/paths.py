"""Paths of a run: its model, its data, and where it writes."""

import os
from dataclasses import dataclass

from ascend_quant.recipes.keys import MODEL
from launch.recipes.fields import Recipe

CHOSEN = {  # settings that are made from paths when the run starts, and the options that give them
    f"{MODEL}.path": "--model",
    "data.train_files": "--data (or recipe.data.train=FILE)",
    "data.val_files": "--data (or recipe.data.validation=FILE)",
    "trainer.default_local_dir": "--out",
}


@dataclass(frozen=True)
class Paths:
    """Paths of one run: its model (a folder, or a hub id), its data, and where it writes."""

    model: str
    data: str
    out: str


def paths_of(recipe: Recipe, model: str | None, data: str, out: str | None) -> Paths:
    """Return the paths of a run; what was not said is the recipe's: its model, which may lie in the data; its name."""
    own = recipe.model.hub or os.path.join(data, recipe.model.folder or "")
    return Paths(model or own, data, out or f"runs/{recipe.name}")


def data_files(recipe: Recipe, paths: Paths) -> tuple[str, str]:
    """Return the files that are trained on, and those of the validation."""
    return os.path.join(paths.data, recipe.data.train), os.path.join(paths.data, recipe.data.validation)


def settings(recipe: Recipe, paths: Paths) -> dict[str, str]:
    """Return the settings that name files."""
    values = (paths.model, *data_files(recipe, paths), f"{paths.out}/checkpoints")
    return dict(zip(CHOSEN, values, strict=True))
