"""Where a run finds its model and data and where it writes, by the paths that its processes see on the hosts."""

import os
from pathlib import Path

from launch.errors import LaunchError
from launch.inventory.fields import Inventory
from launch.recipes import Paths, Recipe, paths_of
from launch.root import ROOT


def places(
    recipe: Recipe,
    inventory: Inventory,
    run: str,
    local: bool,
    model: str | None = None,
    data: str | None = None,
    out: str | None = None,
) -> Paths:
    """The paths of a run; what is not given lies in the project's folder, or in the first of inventory.shared.

    Args:
        local: the head is this machine.

    Raises:
        LaunchError: there is no default for what is not given.
    """
    data = default_data(inventory, local) if data is None else os.path.abspath(data)
    if model is not None and (model.startswith((".", "/")) or Path(model).exists()):
        model = os.path.abspath(model)
    return paths_of(recipe, model, data, default_out(inventory, run, local) if out is None else os.path.abspath(out))


def default_data(inventory: Inventory, local: bool) -> str:
    """Where the data sets are unless --data says so: where `run.sh data` puts them."""
    folder = working_folder(inventory, local) or next(iter(inventory.shared), None)
    if folder is None:
        raise LaunchError("--data is missing: the inventory names an image, and neither a project nor shared folders")
    return f"{folder}/data"


def default_out(inventory: Inventory, run: str, local: bool) -> str:
    """Where a run writes unless --out says so."""
    if inventory.shared:
        return f"{inventory.shared[0]}/runs/{run}"
    folder = working_folder(inventory, local)
    if folder is None:
        raise LaunchError("--out is missing: the inventory names an image, and neither a project nor shared folders")
    return f"{folder}/runs/{run}"


def working_folder(inventory: Inventory, local: bool) -> str | None:
    """Where a command that is given no folder reads and writes: here, or where the project is on other hosts."""
    return os.getcwd() if local and inventory.image is None else project_of(inventory)


def project_of(inventory: Inventory) -> str | None:
    """The folder of the checkout on the hosts; None is the image's own."""
    return inventory.project or (str(ROOT) if inventory.image is None else None)


def needs(recipe: Recipe, paths: Paths) -> list[str]:
    """The paths that must be there on each host. A model that is no path is an id of the hub."""
    files = [f"{paths.data}/{name}" for name in dict.fromkeys([recipe.data.train, recipe.data.validation])]
    return [*([paths.model] if paths.model.startswith("/") else []), *files]


def under(path: str, folders: list[str]) -> bool:
    """Whether a path lies in one of the folders."""
    return any(path == folder or path.startswith(f"{folder}/") for folder in folders)
