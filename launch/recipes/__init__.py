"""Recipes as the launcher reads them: composed by Hydra (ascend_quant.recipes), checked, and made verl's command.

recipe = load("qwen3-4b-fp8", ["trainer.save_freq=5"])
resolve(recipe, Paths(model="/models/Qwen3-4B", data="/data", out="/runs/one"))

files.py        loads a shipped recipe or a user's; old_names.py translates old names in --set
fields.py       the launcher's view of a recipe; rules.py checks combinations of settings
overrides.py    the arguments of verl; paths.py has its paths, verl.py its value syntax and versions
command.py      the output of `recipe show`
stacks.py       the pins of each stack
"""

from launch.recipes.fields import Recipe
from launch.recipes.files import load, names
from launch.recipes.overrides import resolve
from launch.recipes.paths import Paths, paths_of

__all__ = ["Paths", "Recipe", "load", "names", "paths_of", "resolve"]
