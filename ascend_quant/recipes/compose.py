"""The search path of recipes, and their composition without verl, for a machine that only plans a run.

Without verl, the composed config contains only the verl settings that the recipe makes, and none of verl's defaults.
With `integrations/verl/main_ppo.py`, the recipe changes verl's config. Both use Hydra's search path, so they find the
same files.
"""

import os
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from hydra import compose, initialize, initialize_config_dir
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.plugins.search_path_plugin import SearchPathPlugin
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import InterpolationKeyError, OmegaConfBaseException
from yaml import YAMLError

from ascend_quant.files.documents import read_yaml
from ascend_quant.recipes import RecipeError, UnknownRecipe, leaves, nearest, shipped

CONFIGS = "ascend_quant.configs"
GROUPS = (
    "recipe",
    "demo",
    "stack",
    "backend",
    "scheme",
    "kv",
    "send",
    "correction",
    "precision",
    "optimizer",
    "placement",
    "plugin",  # this group and the next two are chosen by the stack, the scheme and the backend
    "plugin/bf16",
    "attention",
)
PREFIX = "ascend_quant."  # prefix of our resolvers' names
STAND_IN = "ascend_quant_without_verl"  # takes the place of verl's ppo_trainer
ENGINES = ("dp", "megatron")


class _Configs(SearchPathPlugin):
    """Adds our configs to Hydra's search path."""

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
    """Register our configs with Hydra and our resolvers with OmegaConf, for this process."""
    Plugins.instance().register(_Configs)
    for name, resolver in RESOLVERS.items():
        OmegaConf.register_new_resolver(f"{PREFIX}{name}", resolver)


@cache
def _stand_in() -> None:
    """Store a replacement for verl's config, which has only the group from which backends choose."""
    store = ConfigStore.instance()
    store.store(name=STAND_IN, node={"defaults": [{"model_engine": "dp"}, "_self_"]})
    for engine in ENGINES:
        store.store(group="model_engine", name=engine, node={"model_engine": engine}, package="_global_")


def names(group: str = "recipe") -> list[str]:
    """List the shipped recipes, or the choices of another group."""
    return sorted(file.stem for file in shipped(group).glob("*.yaml"))


def summaries() -> dict[str, str]:
    """Return the summary of each recipe, read from its file, since composing all recipes would take half a minute."""
    return {name: read_yaml(shipped() / f"{name}.yaml")["recipe"]["summary"] for name in names()}


def alone(name: str, overrides: Sequence[str] = (), group: str = "recipe") -> DictConfig:
    """Compose a recipe without verl.

    Args:
        name: name of a shipped recipe, or path of a user's file, whose defaults list may contain shipped recipes and
            files in the same folder.
        overrides: overrides as on verl's command line; a setting that the recipe lacks is added.
        group: config group of the recipe.

    Raises:
        RecipeError: the recipe does not exist, or cannot be composed.
    """
    file, known = Path(name), names(group)
    choices = tuple(one for one in overrides if is_group(one))
    if found := list(filter(None, map(unknown_choice, overrides))):
        raise RecipeError("\n".join(found))
    if name.endswith((".yaml", ".yml")):
        if not os.path.isfile(file):
            raise UnknownRecipe(f"no recipe {name!r}: there is no such file")
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(file.parent.absolute(), Path(folder, group))
            made = _composed(file.stem, choices, group, folder)
    elif name in known:
        made = _shipped(name, choices, group).copy()
    else:
        raise UnknownRecipe(f"no recipe {name!r}: {nearest(name, known)} `ascend-quant recipe list` shows all")
    try:
        for one in OverridesParser.create().parse_overrides([one for one in overrides if one not in choices]):
            _apply(one, made)
    except (HydraException, OmegaConfBaseException) as error:
        raise RecipeError(_line(error)) from error
    return made


@cache
def _shipped(name: str, choices: tuple[str, ...], group: str) -> DictConfig:
    return _composed(name, choices, group)


def _composed(name: str, choices: tuple[str, ...], group: str, folder: str | None = None) -> DictConfig:
    register()
    _stand_in()
    where = initialize_config_dir(folder, version_base=None) if folder else initialize(None, version_base=None)
    try:
        with where:
            made = compose(STAND_IN, overrides=[f"+{group}={name}", *choices])
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:  # ValueError is raised for kv=null
        raise RecipeError(_line(error)) from error
    OmegaConf.set_struct(made, False)
    return made


def _apply(override: Override, config: DictConfig) -> None:
    """Apply an override as Hydra does after composition, although most of verl's settings are absent here."""
    key = override.key_or_group
    if not override.is_delete():
        OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
        return
    above, _, last = key.rpartition(".")
    if isinstance(inside := OmegaConf.select(config, above) if above else config, DictConfig):
        inside.pop(last, None)
        if above and not inside:  # an empty mapping would be a setting itself
            _apply(OverridesParser.create().parse_override(f"~{above}"), config)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def is_group(override: str) -> bool:
    """Return whether an override is a choice from a config group."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0] in (*GROUPS, "model_engine")


def unknown_choice(override: str) -> str | None:
    """Return the problem of an override that chooses from a group which does not exist; None for any other override."""
    name = override.partition("=")[0]
    is_part = override.startswith(("+", "~")) or "={" in override  # adds, deletes or sets a part of verl's config
    if "." in name or is_group(override) or is_part:
        return None
    return f"{name}: there is no such choice: {nearest(name, GROUPS)}"


def plain(config: DictConfig) -> dict[str, Any]:
    """Return a config as plain values; only references to settings that exist in verl's own config stay unresolved.

    Raises:
        RecipeError: a value is missing, or cannot be resolved.
    """
    for path, text in list(leaves(OmegaConf.to_container(config, resolve=False))):
        if isinstance(text, str) and "${" in text and (_is_ours(path, text) or _resolves(config, path)):
            try:
                OmegaConf.update(config, path, OmegaConf.select(config, path))
            except OmegaConfBaseException as error:
                raise RecipeError(f"{path}: {str(error).splitlines()[0]}") from error
    tree = OmegaConf.to_container(config, resolve=False)
    if missing := [path for path, value in leaves(tree) if value == MISSING]:
        raise RecipeError(f"{', '.join(missing)}: no value is given")
    return tree


def _is_ours(path: str, text: str) -> bool:
    return PREFIX in text or path.startswith("recipe.")


def _resolves(config: DictConfig, path: str) -> bool:
    try:
        OmegaConf.select(config, path, throw_on_resolution_failure=True)
    except InterpolationKeyError:
        return False
    return True


def settle(config: DictConfig) -> None:
    """Replace references to our resolvers with their values, since other processes do not register the resolvers."""
    for path, text in list(leaves(OmegaConf.to_container(config, resolve=False))):
        if isinstance(text, str) and f"${{{PREFIX}" in text:
            OmegaConf.update(config, path, OmegaConf.select(config, path))
