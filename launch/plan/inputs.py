"""The inputs of a run, from its recipe and settings; the doctor checks them, and every host before Ray starts."""

from collections.abc import Sequence

from launch.plan import Inputs
from launch.plan import job as jobs
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe


def inputs(recipe: Recipe, overrides: Sequence[str], paths: Paths) -> Inputs:
    """Return what a run reads and writes on its head.

    Args:
        overrides: overrides of verl's settings: the recipe's, then the user's.
    """
    return Inputs(
        model=paths.model,
        tensor_parallel=recipe.rollout.tensor_parallel,
        needs=jobs.needs(recipe, paths, overrides),
        columns=jobs.columns(overrides),
        prompt=jobs.prompt(overrides),
        least_rows=jobs.least_rows(recipe, overrides, paths),
        imports=imports(recipe, overrides),
        out=paths.out,
        saving=jobs.saving(recipe, overrides, paths),
    )
