"""Reading configs/recipes/NAME.yaml. `extends: OTHER` in a file takes what it leaves out from that recipe.

`extends: [ONE, OTHER]` takes it from both, and where both have it, from the last. A name is looked up beside the file,
then in configs/recipes. A recipe's own `name` is its file's, and may be left out.
What a user changes on the command line (`--set rollout.n=16`) is laid over the file, and checked as if it stood there.
What is wrong is told in lines that a user can act on: the file, the key, the value, and what is valid.
"""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from ascend_quant.files.documents import BadDocument, parse_yaml, read_yaml
from ascend_quant.integrations.verl import EXACT
from launch import ROOT, LaunchError
from launch.environment.variables import secret
from launch.recipes.fields import Recipe
from launch.recipes.rules import problems

Model = TypeVar("Model", bound=BaseModel)
FOLDER = ROOT / "configs" / "recipes"
DEMOS = {"demo": "demo", "study": "bench study"}  # their format and loader are their own: launch/demo/training.py


def names(folder: Path = FOLDER) -> list[str]:
    """List the recipes that can be loaded. A file whose name begins with _ is what others extend."""
    return sorted(file.stem for file in folder.glob("[!_]*.yaml") if file.stem not in DEMOS)


def load(name: str, folder: Path = FOLDER, changes: Mapping[str, str] | Iterable[tuple[str, str]] = ()) -> Recipe:
    """Load and check the recipe called `name`, or in the file `name` if that ends in .yaml.

    Args:
        changes: values, as YAML, by the dotted keys of a recipe; later ones are laid over earlier ones.

    Raises:
        LaunchError: there is none, or it is wrong: each line names the file and what to change.
    """
    file = Path(name) if name.endswith(".yaml") else folder / f"{name}.yaml"
    if name in DEMOS:
        raise LaunchError(f"{name} is not a recipe for train: run ./run.sh {DEMOS[name]}; its settings are in {file}")
    if not os.path.isfile(file):
        raise LaunchError(f"no recipe {name!r}: {nearest(name, names(folder))} ./run.sh recipe list shows all")
    tree, said = read(file), {}
    for key, value in changes.items() if isinstance(changes, Mapping) else changes:
        change = changed(key, value)
        tree, said = merged(tree, change), merged(said, change)
    _check_correction(file, tree, said)
    if tree.get("qat") == EXACT:
        tree["correction"] = None  # what a plain recipe says to one that extends it
    recipe = checked(file, {"name": file.stem, **tree}, Recipe, problems)
    if recipe.name != file.stem:
        raise failed(file, [f"name: {recipe.name!r} does not match the file name: write {file.stem}"])
    return recipe


def read(file: Path, above: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Read a file's tree, over those that it extends, but for their names; `above` are the files that led here.

    Raises:
        LaunchError: a file is missing, is no YAML mapping, or extends itself.
    """
    file = Path(os.path.normpath(file))
    if file in above:
        raise failed(file, [f"extends: refers back to this file, through {', '.join(one.stem for one in above)}"])
    try:
        tree = read_yaml(file)
    except BadDocument as error:
        raise LaunchError(str(error)) from error
    whole: dict[str, Any] = {}
    for base in _bases(file, tree.pop("extends", [])):
        whole = merged(whole, read(_found(file, base), (*above, file)))
    whole.pop("name", None)
    whole = merged(whole, tree := _files_beside(file, tree))
    _check_correction(file, whole, tree)
    return whole


def _check_correction(file: Path, whole: dict[str, Any], said: dict[str, Any]) -> None:
    """Raise LaunchError for a `said` correction where nothing is to be corrected; an inherited one gives way."""
    if whole.get("qat") == EXACT and said.get("correction") is not None:
        raise failed(
            file,
            [
                f"correction: {said['correction']} with qat {EXACT}: exact training needs no correction. Remove one "
                "of them"
            ],
        )


def _found(file: Path, base: str) -> Path:
    """Find the file of a name that `file` extends; a user's recipe may have a shipped one's name, and extend that."""
    named = f"{base.removesuffix('.yaml')}.yaml"
    places = [place for place in (file.parent / named, FOLDER / named) if place != file]
    if there := next(filter(os.path.isfile, places), None):
        return there
    nearby = nearest(base, [*names(file.parent), *names()])
    raise failed(file, [f"extends: there is no {named}, beside this file or in {FOLDER}: {nearby}"])


def _files_beside(file: Path, tree: dict[str, Any]) -> dict[str, Any]:
    """Return the tree with absolute paths for `files` that lie beside the recipe."""
    if not isinstance(files := tree.get("files"), dict):
        return tree
    beside = {name: str(file.parent.absolute() / said) for name, said in files.items() if isinstance(said, str)}
    return tree | {"files": files | {name: path for name, path in beside.items() if os.path.isfile(path)}}


def _bases(file: Path, said: Any) -> list[str]:
    bases = [said] if isinstance(said, str) else said
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise failed(file, [f"extends: {said!r}: expected the name of a recipe, or a list of names"])
    return bases


def changed(key: str, text: str) -> dict[str, Any]:
    """Parse a change into a tree: ("rollout.n", "16") -> {"rollout": {"n": 16}}.

    Raises:
        LaunchError: the text cannot be read as YAML, or a number is not plain decimal. It may hold a secret, and is not
            shown.
    """
    try:
        value = parse_yaml(text, "the value")
    except BadDocument as error:
        how = f"write numbers as plain decimal ones (8, not 010), and quote text, as {key}='\"..\"'"
        raise LaunchError(f"--set {key}: cannot be read as YAML: {how}") from error
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """Merge two trees; where both have a value, that of `above` wins."""
    both = dict(below)
    for key, value in above.items():
        nested = isinstance(value, dict) and isinstance(below.get(key), dict)
        both[key] = merged(below[key], value) if nested else value
    return both


def failed(file: Path, problems: list[str]) -> LaunchError:
    """Return the error that lists the problems of a file."""
    return LaunchError("\n".join(f"{file}: {problem}" for problem in problems))


def checked(file: Path, tree: dict[str, Any], model: type[Model], problems: Callable[[Model], Iterable[str]]) -> Model:
    """Validate a file's tree as the model has it.

    Args:
        problems: what does not go together where each field is valid.

    Raises:
        LaunchError: a line for each thing that pydantic, or `problems`, has found.
    """
    try:
        made = model.model_validate(tree)
    except ValidationError as error:
        raise failed(file, [_line(one, model) for one in error.errors()]) from error
    if found := list(problems(made)):
        raise failed(file, found)
    return made


def _line(one: Mapping[str, Any], recipe: type[BaseModel]) -> str:
    *parents, key = one["loc"]
    where = ".".join(map(str, one["loc"]))
    if one["type"] == "extra_forbidden":
        return f"{where}: no such key; {did_you_mean(str(key), valid_keys(recipe, parents))}"
    if one["type"] == "missing":
        return f"{where}: is missing"
    return f"{where}: {_value(one)} is wrong: {one['msg'].removeprefix('Value error, ')}"


def _value(one: Mapping[str, Any]) -> str:
    """Return the given value for a message, cut where it is long; not where it is a secret, or may hold one."""
    given, last = one["input"], str(one["loc"][-1])
    if isinstance(given, dict):
        return "a mapping"
    if secret(last):
        return "***"
    return f"{given!r:.200}"


def nearest(name: str, valid: list[str]) -> str:
    """Return a hint with the three valid names that are nearest."""
    near = difflib.get_close_matches(name, list(dict.fromkeys(valid)), n=3, cutoff=0)
    return f"did you mean {', or '.join(near)}?"


def did_you_mean(key: str, valid: list[str]) -> str:
    """Return a hint with the nearest of the valid keys, if one is near, and all of them."""
    near = difflib.get_close_matches(key, valid, n=1)
    return (f"did you mean {near[0]}? " if near else "") + f"Valid keys: {', '.join(valid)}"


def valid_keys(model: type[BaseModel], path: list[Any]) -> list[str]:
    """List the keys of the part of a recipe that `path` leads to."""
    for key in path:
        if isinstance(key, int):  # a place in a list, whose type was found one step before
            continue
        annotation = model.model_fields[key].annotation
        model = next(kind for kind in (annotation, *get_args(annotation)) if _is_model(kind))
    return list(model.model_fields)


def _is_model(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, BaseModel)
