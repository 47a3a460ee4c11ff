"""What our mains do with a config that a recipe may be part of: before Hydra composes it, and after.

python -m ascend_quant.integrations.verl.main_ppo +recipe=qwen2.5-7b-int8-gsm8k-h100 trainer.save_freq=5
"""

from typing import Any

from hydra import compose
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import DictConfig, OmegaConf

from ascend_quant.recipes import RecipeError, keys
from ascend_quant.recipes.compose import GROUPS, register, settle
from ascend_quant.recipes.node import node_of

__all__ = ["check", "register"]

ENGINE = "model_engine"  # the group of verl that chooses the files of its trainer


def check(config: DictConfig) -> None:
    """Check a config that `hydra.main` composed, and put values in the place of references to our resolvers.

    Raises:
        RecipeError: it has a key that verl's own does not have, or its `recipe` node is wrong; a line each.
    """
    if found := keys.unknown(_plain(config), _plain(_bare()), _added()):
        raise RecipeError("\n".join(found))
    if keys.NODE in config:
        node_of({keys.NODE: OmegaConf.to_container(config[keys.NODE], resolve=True)})
    settle(config)


def _plain(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def _bare() -> DictConfig:
    """Compose the config of this main without our groups; those of verl are chosen as they were."""
    hydra = HydraConfig.get()
    chosen = dict(hydra.runtime.choices)
    given = [one for one in _given() if one.key_or_group in chosen and one.key_or_group not in GROUPS]
    overrides = [one.input_line for one in given if one.key_or_group != ENGINE]
    if ENGINE in chosen:  # a recipe chooses it, too
        overrides.append(f"{ENGINE}={chosen[ENGINE]}")
    return compose(hydra.job.config_name, overrides=overrides)


def _given() -> list[Override]:
    return OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))


def _added() -> list[str]:
    """Return the keys that the command line adds with + or ++."""
    return [one.key_or_group for one in _given() if one.is_add() or one.is_force_add()]
