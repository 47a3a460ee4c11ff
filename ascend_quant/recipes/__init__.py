"""Recipes: Hydra config groups in configs/ (in the wheel: ascend_quant.configs), which compose with verl's own config.

    python -m ascend_quant.integrations.verl.main_ppo +recipe=qwen2.5-7b-int8-gsm8k-h100 trainer.save_freq=5

compose.py      where they are found, resolvers for values that follow from others, and composition without verl
node.py         the top-level `recipe` node: what verl does not know of a run
keys.py         keys that verl's config does not have: what Hydra accepts in silence

Importing this package imports neither Hydra nor verl.
"""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any


class RecipeError(ValueError):
    """A recipe that does not exist, does not compose, or has a wrong key or value."""


def shipped(group: str = "recipe") -> Path:
    """Return the folder of a group of the shipped configs."""
    return Path(str(files("ascend_quant") / "configs" / group))


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return a hint with the three valid names that are nearest."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(valid)), n=3, cutoff=0)
    return f"did you mean {', or '.join(near)}?"


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten a tree: {"a": {"b": 1}} -> ("a.b", 1). An empty mapping is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
