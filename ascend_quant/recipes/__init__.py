"""Recipes: Hydra config groups in configs/ (in the wheel: ascend_quant.configs), which compose with verl's own config.

    python -m ascend_quant.integrations.verl.main_ppo +recipe=qwen2.5-7b-int8-gsm8k-h100 trainer.save_freq=5

compose.py      the search path, resolvers for derived values, and composition without verl
node.py         the top-level `recipe` node: fields of a run that are not verl settings
keys.py         the check for keys that verl's config does not have, which Hydra accepts silently

Importing this package imports neither Hydra nor verl.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any


class RecipeError(ValueError):
    """Raised if a recipe does not exist, cannot be composed, or has a wrong key or value."""


class UnknownRecipe(RecipeError):
    """The name of no recipe; the message includes it."""


def prefix(name: str, error: RecipeError) -> str:
    """Return the beginning of an error's lines: the recipe's name, unless the message includes it."""
    return "" if isinstance(error, UnknownRecipe) else f"{name}: "


def shipped(group: str = "recipe") -> Path:
    """Return the folder of a group of the shipped configs."""
    return Path(str(files("ascend_quant") / "configs" / group))


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint with the three closest valid names."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(valid)), n=3, cutoff=0)
    return f"did you mean {', or '.join(near)}?"


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the leaves of a tree with dotted keys: {"a": {"b": 1}} -> ("a.b", 1). An empty mapping is a leaf."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
