"""Loads a shipped recipe by its name, or a user's file; Hydra composes it with the user's changes.

Each line of an error names the file, the key, the value, and what is valid.
"""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from ascend_quant.files.documents import BadDocument, read_yaml
from ascend_quant.recipes import RecipeError, prefix
from ascend_quant.recipes.compose import alone, is_group, names, plain
from ascend_quant.recipes.node import Node, lines, node_of
from launch import LaunchError
from launch.environment.variables import secret, without_secrets_in
from launch.recipes import old_names
from launch.recipes.fields import Recipe, given
from launch.recipes.overrides import key
from launch.recipes.rules import problems

__all__ = ["checked", "load", "names"]

Model = TypeVar("Model", bound=BaseModel)
# Configs in configs/demo, which ascend_quant/demo/training.py composes, and their commands.
DEMOS = {"demo": "demo", "study": "bench study"}


def load(name: str, changes: Sequence[str] = ()) -> Recipe:
    """Load and check the recipe called `name`, or in the file `name` if that ends in .yaml.

    Args:
        changes: Hydra overrides, such as `scheme=bf16` or `trainer.save_freq=5`; later ones have priority. Old names
            are translated, with a notice on stderr.

    Raises:
        LaunchError: the recipe does not exist, or is wrong; each line says what to change.
    """
    if name in DEMOS:
        raise LaunchError(f"{name} is not a recipe for train: run ./run.sh {DEMOS[name]}")
    is_file = name.endswith((".yaml", ".yml")) and Path(name).is_file()
    base, fields = _older(name) if is_file else (name, [])
    said, written = old_names.translated([*fields, *changes], lambda: _composed(base, ()))
    if found := [line for one in written for line in _unreadable(one)]:
        raise LaunchError("\n".join(found))
    overrides = tuple(one for one in [*said, *written] if not key(one).startswith("hydra."))
    extra = tuple(one for one in written if not is_group(one) and not key(one).startswith("recipe."))
    return _composed(base, overrides, name, extra)


def _older(file: str) -> tuple[str, list[str]]:
    """Return the base recipe and the changes of a file in the old format (extends:), which 0.3 refuses.

    Raises:
        LaunchError: the file cannot be read, or extends several recipes.
    """
    try:
        tree = read_yaml(Path(file))
    except BadDocument as error:
        raise LaunchError(str(error)) from error
    if "extends" not in tree:
        return file, []
    base = tree.pop("extends")
    if base not in names():
        raise LaunchError(
            f"{file}: extends: {base}: recipes are Hydra configs now: write defaults: [RECIPE, _self_], and settings "
            "by verl's names (docs/recipes.md)"
        )
    print(f"{file}: extends is the older form, which 0.3 refuses: write defaults: [{base}, _self_]", file=sys.stderr)
    fields = {**tree, "name": Path(file).stem}
    return base, [
        f"{name}={value if is_group(name) else json.dumps(value, ensure_ascii=False)}" for name, value in fields.items()
    ]


def _composed(base: str, overrides: tuple[str, ...], name: str | None = None, extra: tuple[str, ...] = ()) -> Recipe:
    name = name or base
    stem = Path(name).stem if name.endswith((".yaml", ".yml")) else name
    try:
        tree = plain(alone(base, overrides))
        node = node_of(tree)
    except RecipeError as error:
        of_hydra = not isinstance(error.__cause__, ValidationError)  # only Hydra's message may have secrets
        told = without_secrets_in(str(error)) if of_hydra else str(error)
        raise LaunchError("\n".join(f"{prefix(name, error)}{line}" for line in told.splitlines())) from error
    if node.name != stem:
        raise LaunchError(f"{name}: recipe.name: {node.name!r} does not match the file name: write {stem}")
    on_npus = node.stack.startswith("ascend")
    environment = {one: value for one, value in node.environment.items() if on_npus or "HCCL_" not in one}
    node = node.model_copy(update={"files": _files(name, node), "environment": environment})
    return checked(name, given(node, tree, extra), Recipe, problems)


def _unreadable(override: str) -> Iterator[str]:
    """Yield why Hydra would not accept an override, without its value, which may be a secret."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    name, is_deleted = key(override), override.startswith("~")
    if override.startswith("-") or not ("=" in override or is_deleted):  # options of Hydra begin with -
        yield f"{without_secrets_in(override)[:200]!r} is not a setting: write KEY=VALUE, such as trainer.save_freq=10"
        return
    try:
        OverridesParser.create().parse_override(override)
    except HydraException:
        yield f"{name}: Hydra cannot read the value: quote text that has spaces or signs, as {name}='\"..\"'"


def _files(where: str, node: Node) -> dict[str, str]:
    """Return the absolute paths of files that lie beside the recipe."""
    made = {name: Path(where).absolute().parent / said for name, said in node.files.items()}
    for name, file in made.items():
        if not file.is_file():
            raise LaunchError(f"{where}: recipe.files.{name}: {node.files[name]}: there is no file {file}")
    return {name: str(file) for name, file in made.items()}


def checked(
    file: Path | str, tree: Mapping[str, Any], model: type[Model], problems: Callable[[Model], Iterable[str]]
) -> Model:
    """Validate the tree of a file.

    Args:
        file: the file or name at the beginning of each line of an error.
        problems: function that yields contradictions between fields that are valid one by one.

    Raises:
        LaunchError: the tree is not valid; one line per problem that pydantic, or else `problems`, has found.
    """
    try:
        made = model.model_validate(tree)
    except ValidationError as error:
        raise LaunchError("\n".join(f"{file}: {line}" for line in lines(error, model, secret))) from error
    if found := list(problems(made)):
        raise LaunchError("\n".join(f"{file}: {line}" for line in found))
    return made
