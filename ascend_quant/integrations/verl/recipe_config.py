"""Registers our recipes before Hydra composes a config in our mains, and checks the composed config.

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

ENGINE = "model_engine"  # the group with which verl chooses the files of its trainer


def check(config: DictConfig) -> None:
    """Check a config that `hydra.main` composed, and replace references to our resolvers with their values.

    Raises:
        RecipeError: the config has keys that verl's own does not have, or its `recipe` node is not valid; one line per
            problem.
    """
    if found := keys.unknown(_plain(config), _plain(_bare()), _added()):
        raise RecipeError("\n".join(found))
    if keys.NODE in config:
        node_of({keys.NODE: OmegaConf.to_container(config[keys.NODE], resolve=True)})
    settle(config)


def _plain(config: DictConfig) -> Any:
    return OmegaConf.to_container(config, resolve=False)


def _bare() -> DictConfig:
    """Compose the config of this main without our groups, and with the same choices from verl's groups."""
    hydra = HydraConfig.get()
    chosen = dict(hydra.runtime.choices)
    given = [one for one in _given() if one.key_or_group in chosen and one.key_or_group not in GROUPS]
    overrides = [one.input_line for one in given if one.key_or_group != ENGINE]
    if ENGINE in chosen:  # a recipe may have changed this choice
        overrides.append(f"{ENGINE}={chosen[ENGINE]}")
    return compose(hydra.job.config_name, overrides=overrides)


def _given() -> list[Override]:
    return OverridesParser.create().parse_overrides(list(HydraConfig.get().overrides.task))


def _added() -> list[str]:
    """List the keys that the command line adds with + or ++."""
    return [one.key_or_group for one in _given() if one.is_add() or one.is_force_add()]
