"""The inputs of a run, from its recipe and paths; the doctor checks them, and every host before Ray starts."""

from launch.plan import Inputs
from launch.plan import job as jobs
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe, resolve


def inputs(recipe: Recipe, paths: Paths) -> Inputs:
    """Return what a run reads and writes on its head."""
    overrides = resolve(recipe, paths).overrides
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
