"""The inputs of a run, from its recipe and paths; the doctor checks them, and every host before Ray starts."""

from launch.plan import Inputs
from launch.plan import job as jobs
from launch.plan.imports import imports
from launch.recipes import Paths, Recipe


def inputs(recipe: Recipe, paths: Paths) -> Inputs:
    """Return what a run reads and writes on its head."""
    return Inputs(
        model=paths.model,
        tensor_parallel=recipe.rollout.tensor_parallel,
        needs=jobs.needs(recipe, paths),
        columns=jobs.columns(recipe),
        prompt=jobs.prompt(recipe),
        least_rows=jobs.least_rows(recipe, paths),
        imports=imports(recipe),
        out=paths.out,
        saving=jobs.saving(recipe, paths),
    )
