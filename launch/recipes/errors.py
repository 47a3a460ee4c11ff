"""What is wrong with a recipe, in lines a user can act on: the file, the key, the value, and what is valid."""

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from launch.variables import secret

MOST_SHOWN = 200


class RecipeError(ValueError):
    """A recipe that cannot be used; each line names the file and one thing that is wrong."""


def failed(file: Path, problems: list[str]) -> RecipeError:
    """The error that lists the problems of a file."""
    return RecipeError("\n".join(f"{file}: {problem}" for problem in problems))


def explain(error: ValidationError, recipe: type[BaseModel]) -> list[str]:
    """A line for each thing that pydantic found."""
    return [_line(one, recipe) for one in error.errors()]


def _line(one: Mapping[str, Any], recipe: type[BaseModel]) -> str:
    *parents, key = one["loc"]
    where = ".".join(map(str, one["loc"]))
    if one["type"] == "extra_forbidden":
        return f"{where}: no such key; {did_you_mean(str(key), valid_keys(recipe, parents))}"
    if one["type"] == "missing":
        return f"{where}: is missing"
    return f"{where}: {_value(one)} is wrong: {one['msg'].removeprefix('Value error, ')}"


def _value(one: Mapping[str, Any]) -> str:
    """What was given, cut where it is long; not where it is a secret, or may hold one."""
    given, last = one["input"], str(one["loc"][-1])
    if isinstance(given, dict):
        return "a mapping"
    if secret(last):
        return "***"
    words = repr(given)
    return words if len(words) <= MOST_SHOWN else f"{words[:MOST_SHOWN]}.."


def did_you_mean(key: str, valid: list[str]) -> str:
    """The nearest valid key, if one is near, and all of them."""
    near = difflib.get_close_matches(key, valid, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"Valid keys: {', '.join(valid)}"


def valid_keys(model: type[BaseModel], path: list[Any]) -> list[str]:
    """The keys of the part of a recipe that `path` leads to."""
    for key in path:
        if isinstance(key, int):  # a place in a list, whose type was found one step before
            continue
        annotation = model.model_fields[key].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if _is_model(kind))
    return list(model.model_fields)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
