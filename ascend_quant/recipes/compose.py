"""Where recipes are found, and their composition without verl: what a machine that only plans a run needs.

Composed alone, a recipe gives its own settings of verl, in verl's names, and nothing of verl's defaults. Composed by
`integrations/verl/main_ppo.py` it changes verl's config. Both find the same files, through the search path of Hydra.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from hydra import compose, initialize, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from ascend_quant.recipes import RecipeError, nearest

CONFIGS = "ascend_quant.configs"
GROUPS = (
    *("recipe", "demo", "stack", "backend", "scheme", "kv", "send", "correction", "precision", "placement"),
    *("plugin", "plugin/bf16", "attention"),  # chosen by the stack and the backend
)
PREFIX = "ascend_quant."  # of our resolvers
STAND_IN = "ascend_quant_without_verl"  # in the place of verl's ppo_trainer
ENGINES = ("dp", "megatron")


class _Configs(SearchPathPlugin):
    """Adds our configs to every search path of this process."""

    def manipulate_search_path(self, search_path: Any) -> None:
        search_path.append(provider="ascend-quant", path=f"pkg://{CONFIGS}")


def _model(hub: str | None, data: str, folder: str | None) -> str:
    return hub or os.path.join(data, folder or "")


RESOLVERS = {
    "sum": lambda one, other: one + other,
    "ratio": lambda whole, part: max(whole // part, 1),
    "several": lambda count: count > 1,
    "join": os.path.join,
    "model": _model,
    "lacks_graphs": lambda experts, ranks, needed: experts and ranks < needed,
}


@cache
def register() -> None:
    """Make Hydra and OmegaConf of this process know our configs and resolvers."""
    Plugins.instance().register(_Configs)
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(f"{PREFIX}{name}", resolver)


@cache
def _stand_in() -> None:
    """Store what stands for verl's config where a recipe is composed alone: the group that backends choose from."""
    store = ConfigStore.instance()
    store.store(name=STAND_IN, node={"defaults": [{"model_engine": "dp"}, "_self_"]})
    for engine in ENGINES:
        store.store(group="model_engine", name=engine, node={"model_engine": engine}, package="_global_")


def shipped() -> Path:
    """Return the folder of the shipped configs."""
    return Path(str(files("ascend_quant") / "configs"))


def names(group: str = "recipe") -> list[str]:
    """List the recipes, or the choices of another group."""
    return sorted(file.stem for file in (shipped() / group).glob("*.yaml"))


def alone(name: str, overrides: Sequence[str] = (), folder: str | None = None, group: str = "recipe") -> DictConfig:
    """Compose a recipe without verl.

    Args:
        overrides: as on verl's command line; a setting that the recipe does not have is added.
        folder: a user's own configs, which come before ours: the recipe is FOLDER/recipe/NAME.yaml.

    Raises:
        RecipeError: there is no such recipe, or it does not compose.
    """
    known = names(group) + ([] if folder is None else [file.stem for file in Path(folder, group).glob("*.yaml")])
    if name not in known and not name.startswith("base/"):
        raise RecipeError(f"no recipe {name!r}: {nearest(name, known)}")
    made = _composed if folder is None else _composed.__wrapped__
    return made(name, tuple(overrides), folder, group).copy()


@cache
def _composed(name: str, overrides: tuple[str, ...], folder: str | None, group: str) -> DictConfig:
    register()
    _stand_in()
    given = [one if _is_group(one) or one.startswith(("+", "~")) else f"++{one}" for one in overrides]
    given = [f"+{one}" if one.startswith("+") and not one.startswith("++") else one for one in given]
    where = initialize(config_path=None, version_base=None)
    if folder is not None:
        where = initialize_config_dir(os.path.abspath(folder), version_base=None)
    try:
        with where:
            return compose(STAND_IN, overrides=[f"+{group}={name}", *given])
    except (HydraException, OmegaConfBaseException) as error:
        raise RecipeError(f"{group} {name}: {' '.join(str(error).split())}") from error


def _is_group(override: str) -> bool:
    return override.partition("=")[0] in (*GROUPS, "model_engine")


def plain(config: DictConfig) -> dict[str, Any]:
    """Return a config's values, references resolved.

    Raises:
        RecipeError: a value is missing, or refers to one that is not there.
    """
    try:
        return OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
    except OmegaConfBaseException as error:
        raise RecipeError(" ".join(str(error).split())) from error


def leaves(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Flatten a tree: {"a": {"b": 1}} -> ("a.b", 1). An empty mapping is a value."""
    for key, value in tree.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def settle(config: DictConfig) -> None:
    """Put values in the place of our resolvers, which processes elsewhere do not know."""
    for path, text in list(leaves(OmegaConf.to_container(config, resolve=False))):
        if isinstance(text, str) and f"${{{PREFIX}" in text:
            OmegaConf.update(config, path, OmegaConf.select(config, path))
