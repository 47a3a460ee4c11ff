"""Reading configs/clusters/NAME.yaml, or a file by its path; and the inventory that is this machine alone."""

import sys
from pathlib import Path

from pydantic import ValidationError

from launch.errors import LaunchError
from launch.inventory.fields import Host, Inventory
from launch.inventory.rules import problems
from launch.recipes.errors import did_you_mean, explain
from launch.root import ROOT

FOLDER = ROOT / "configs" / "clusters"


def names(folder: Path = FOLDER) -> list[str]:
    """The inventories that can be loaded by name."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load(name: str, folder: Path = FOLDER) -> Inventory:
    """The inventory called `name`, or in the file `name` if that ends in .yaml, checked.

    Raises:
        LaunchError: there is none, or it is wrong: each line names the file and what to change.
    """
    import yaml

    file = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not file.is_file():
        nearest = did_you_mean(name, names(folder)).replace("keys", "names")
        raise LaunchError(f"no inventory {name!r}: give the path of a .yaml file, or a name. {nearest}")
    try:
        tree = yaml.safe_load(file.read_text())
    except yaml.YAMLError as error:
        raise _wrong(file, [f"is no YAML: {' '.join(str(error).split())}"]) from error
    if not isinstance(tree, dict):
        raise _wrong(file, ["is no inventory: a mapping of keys to values is needed"])
    try:
        inventory = Inventory.model_validate(tree)
    except ValidationError as error:
        raise _wrong(file, explain(error, Inventory)) from error
    if found := list(problems(inventory)):
        raise _wrong(file, found)
    return inventory


def this_machine(stack: str) -> Inventory:
    """The inventory without a file: one host, this one, with this interpreter."""
    return Inventory(stack=stack, project=str(ROOT), python=sys.executable, hosts=[Host(address="127.0.0.1")])


def _wrong(file: Path, found: list[str]) -> LaunchError:
    return LaunchError("\n".join(f"{file}: {problem}" for problem in found))
