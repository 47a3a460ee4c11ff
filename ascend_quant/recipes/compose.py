"""Where recipes are found, and their composition without verl: what a machine that only plans a run needs.

Composed alone, a recipe gives its own settings of verl, in verl's names, and nothing of verl's defaults. Composed by
`integrations/verl/main_ppo.py` it changes verl's config. Both find the same files, through the search path of Hydra.
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
from ascend_quant.recipes import RecipeError, leaves, nearest, shipped

CONFIGS = "ascend_quant.configs"
GROUPS = (
    *(
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
    ),
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


def names(group: str = "recipe") -> list[str]:
    """List the recipes, or the choices of another group."""
    return sorted(file.stem for file in shipped(group).glob("*.yaml"))


def summaries() -> dict[str, str]:
    """Return what each recipe trains, as its own file says: composing them all would take half a minute."""
    return {name: read_yaml(shipped() / f"{name}.yaml")["recipe"]["summary"] for name in names()}


def alone(name: str, overrides: Sequence[str] = (), group: str = "recipe") -> DictConfig:
    """Compose a recipe without verl.

    Args:
        name: of a shipped one; or a file of the user's own, which may have others beside it, and shipped ones, in its
            defaults.
        overrides: as on verl's command line; a setting that the recipe does not have is added.

    Raises:
        RecipeError: there is no such recipe, or it does not compose.
    """
    file, known = Path(name), names(group)
    choices = tuple(one for one in overrides if is_group(one))
    if name.endswith((".yaml", ".yml")):
        if not os.path.isfile(file):
            raise RecipeError(f"no recipe {name!r}: there is no such file")
        with tempfile.TemporaryDirectory() as folder:
            os.symlink(file.parent.absolute(), Path(folder, group))
            made = _composed(file.stem, choices, group, folder)
    elif name in known:
        made = _shipped(name, choices, group).copy()
    else:
        raise RecipeError(f"no recipe {name!r}: {nearest(name, known)} `ascend-quant recipe list` shows all")
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
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:  # the last of kv=null
        raise RecipeError(_line(error)) from error
    OmegaConf.set_struct(made, False)
    return made


def _apply(override: Override, config: DictConfig) -> None:
    """Change a setting as Hydra does once all groups are composed, where most of verl's settings are not there."""
    key = override.key_or_group
    if not override.is_delete():
        OmegaConf.update(config, key, override.value(), merge=True, force_add=True)
        return
    above, _, last = key.rpartition(".")
    if isinstance(inside := OmegaConf.select(config, above) if above else config, DictConfig):
        inside.pop(last, None)
        if above and not inside:  # an empty mapping would be a setting of its own
            _apply(OverridesParser.create().parse_override(f"~{above}"), config)


def _line(error: Exception) -> str:
    return " ".join(str(error).split())


def is_group(override: str) -> bool:
    """Return whether an override chooses from a group."""
    return override.lstrip("+~").partition("=")[0].partition("@")[0] in (*GROUPS, "model_engine")


def plain(config: DictConfig) -> dict[str, Any]:
    """Return a config's values. References are resolved, but for those to settings that only verl's own config has.

    Raises:
        RecipeError: a value is missing, or cannot be computed.
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
    """Put values in the place of our resolvers, which processes elsewhere do not know."""
    for path, text in list(leaves(OmegaConf.to_container(config, resolve=False))):
        if isinstance(text, str) and f"${{{PREFIX}" in text:
            OmegaConf.update(config, path, OmegaConf.select(config, path))
