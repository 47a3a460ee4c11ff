"""Recipes: what to train, on how many devices, at which precisions; from configs/recipes/NAME.yaml to verl's overrides.

recipe = load("qwen3-4b-fp8")
resolve(recipe, Paths(model="/models/Qwen3-4B", data="/data", out="/runs/one")).overrides

files.py reads, fields.py says what there is, rules.py (effective.py) what goes together; settings.py makes verl's
settings of it, verl.py knows its configuration and what its versions differ in, overrides.py writes the command line.
"""

from launch.recipes.fields import Recipe
from launch.recipes.files import load, names
from launch.recipes.overrides import Resolved, resolve
from launch.recipes.settings import Paths, paths_of

__all__ = ["Paths", "Recipe", "Resolved", "load", "names", "paths_of", "resolve"]
